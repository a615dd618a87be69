package mcp

// Methods and notifications.
const (
	MethodInitialize = "initialize"
	MethodDiscover   = "server/discover"
	MethodPing       = "ping"
	MethodListTools  = "tools/list"
	MethodCallTool   = "tools/call"
	MethodListen     = "subscriptions/listen"

	NotifyCancelled    = "notifications/cancelled"
	NotifyProgress     = "notifications/progress"
	NotifyToolsChanged = "notifications/tools/list_changed"
	NotifyAcknowledged = "notifications/subscriptions/acknowledged"
)

// Keys of _meta.
const (
	metaPrefix          = "io.modelcontextprotocol/"
	MetaProtocolVersion = metaPrefix + "protocolVersion"
	MetaCapabilities    = metaPrefix + "clientCapabilities"
	MetaClientInfo      = metaPrefix + "clientInfo"
	MetaServerInfo      = metaPrefix + "serverInfo"
	MetaSubscriptionID  = metaPrefix + "subscriptionId"
	metaProgressToken   = "progressToken"
	metaTraceparent     = "traceparent"
)
