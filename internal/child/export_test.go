package child

// MarkerPrefix returns the prefix of all markers of this process.
var MarkerPrefix = markerPrefix
