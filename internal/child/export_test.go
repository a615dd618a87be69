package child

// Cookie is what all marks of this process begin with.
var Cookie = cookie
