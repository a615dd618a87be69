package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/goccy/go-yaml"
)

// Token is a bearer token for the MCP server, as a hash.
type Token struct {
	Name     string    `yaml:"name"`     // who presents it
	SHA256   string    `yaml:"sha256"`   // of the token, in lower-case hex
	Profiles []string  `yaml:"profiles"` // empty: all
	Expires  time.Time `yaml:"expires"`  // zero: never
}

// Profile is a selection of tools for clients of the MCP server.
type Profile struct {
	Description  string   `yaml:"description"`
	Only         []string `yaml:"only"`
	Exclude      []string `yaml:"exclude"`
	ReadOnly     bool     `yaml:"read_only"`
	Names        string   `yaml:"names"`
	NameLimit    int      `yaml:"name_limit"`
	Tools        string   `yaml:"tools"`
	SearchOver   int      `yaml:"search_over"`
	Instructions string   `yaml:"instructions"`
}

// DefaultProfile is the profile of clients that do not choose one.
const DefaultProfile = "default"

var mcpName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$`)

// ParseTokens reads a file of tokens: {tokens: [{name, sha256, profiles?, expires?}]}.
func ParseTokens(text []byte) ([]Token, error) {
	var file struct {
		Tokens []Token `yaml:"tokens"`
	}
	if err := parseStrict(text, &file); err != nil {
		return nil, err
	}
	var names []string
	for i, t := range file.Tokens {
		if !mcpName.MatchString(t.Name) {
			return nil, fmt.Errorf("token %d: name %q: want letters, digits and _.@-, at most 64", i+1, t.Name)
		}
		if slices.Contains(names, t.Name) {
			return nil, fmt.Errorf("two tokens have the name %s", t.Name)
		}
		if sum, err := hex.DecodeString(t.SHA256); err != nil || len(sum) != 32 || hex.EncodeToString(sum) != t.SHA256 {
			return nil, fmt.Errorf("token %s: sha256: want 64 lower-case hexadecimal digits; `extctl mcp token NAME` prints them", t.Name)
		}
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		return nil, errors.New("it has no tokens; `extctl mcp token NAME` prints one")
	}
	return file.Tokens, nil
}

// ParseProfiles reads a file of profiles: {profiles: {<name>: {only?, exclude?, …}}}.
func ParseProfiles(text []byte) (map[string]Profile, error) {
	var file struct {
		Profiles map[string]Profile `yaml:"profiles"`
	}
	if err := parseStrict(text, &file); err != nil {
		return nil, err
	}
	for name := range file.Profiles {
		if !mcpName.MatchString(name) {
			return nil, fmt.Errorf("profile %q: want letters, digits and _.@-, at most 64", name)
		}
	}
	return file.Profiles, nil
}

// parseStrict decodes YAML that has no unknown members.
func parseStrict(text []byte, into any) (err error) {
	if len(text) > MaxFile {
		return fmt.Errorf("the file has more than %d bytes (1 MiB)", MaxFile)
	}
	defer func() { // the parser panics on some malformed texts
		if p := recover(); p != nil {
			err = errors.New("the file is not YAML")
		}
	}()
	return yaml.UnmarshalWithOptions(text, into, yaml.Strict())
}
