package mcp

// Methods and notifications.
const (
	MethodInitialize = "initialize"
	MethodDiscover   = "server/discover"
	MethodPing       = "ping"
	MethodListTools  = "tools/list"
	MethodCallTool   = "tools/call"
	MethodListen     = "subscriptions/listen"

	MethodListPrompts   = "prompts/list"
	MethodGetPrompt     = "prompts/get"
	MethodListResources = "resources/list"
	MethodListTemplates = "resources/templates/list"
	MethodReadResource  = "resources/read"
	MethodSubscribe     = "resources/subscribe"
	MethodUnsubscribe   = "resources/unsubscribe"
	MethodComplete      = "completion/complete"
	MethodListSkills    = "skills/list"
	MethodGetSkill      = "skills/get"
	MethodSetLevel      = "logging/setLevel"

	NotifyInitialized  = "notifications/initialized"
	NotifyCancelled    = "notifications/cancelled"
	NotifyProgress     = "notifications/progress"
	NotifyToolsChanged = "notifications/tools/list_changed"

	NotifyPromptsChanged   = "notifications/prompts/list_changed"
	NotifyResourcesChanged = "notifications/resources/list_changed"
	NotifyUpdated          = "notifications/resources/updated"
	NotifyMessage          = "notifications/message"

	NotifyAcknowledged = "notifications/subscriptions/acknowledged"
)

// SkillsExtension is the identifier of the extension of the protocol with skills/list and skills/get.
const SkillsExtension = metaPrefix + "skills"

// Keys of _meta.
const (
	metaPrefix          = "io.modelcontextprotocol/"
	MetaProtocolVersion = metaPrefix + "protocolVersion"
	MetaCapabilities    = metaPrefix + "clientCapabilities"
	MetaClientInfo      = metaPrefix + "clientInfo"
	MetaServerInfo      = metaPrefix + "serverInfo"
	MetaLogLevel        = metaPrefix + "logLevel"
	MetaSubscriptionID  = metaPrefix + "subscriptionId"
	metaProgressToken   = "progressToken"
	metaTraceparent     = "traceparent"
)
