package mcp

import (
	"encoding/json"
	"testing"
)

// TestForeignPattern has patterns that Go and Python compile, and what `new RegExp(p, "u")` does with them.
func TestForeignPattern(t *testing.T) {
	for pattern, compiles := range map[string]bool{
		`^\d{4}-\d{2}$`: true, `\d{4}\-\d{2}`: false, `[\-a]`: true, `[a\-\]]+`: true, `(?i)abc`: false, `(?P<x>a)`: false, `(?<x>a)`: true,
		`(?:a|b)`: true, `a(?=b)`: true, `(?<!a)b`: true, `^{.*}$`: false, `^\{.*\}$`: true, `a{2}`: true, `a{2,}`: true, `a{,2}`: false, `[[:alpha:]]`: false,
		`[{}]`: true, `a]`: false, `\p{L}`: true, `\p{Greek}`: false, `\p{Script=Greek}`: true, `^(?!\.)(?!.*\.\.)([a-z.]*)$`: true, `(a)\1`: true, `(`: false, `[\x80-\uFFFF]`: true, `[\u0000-Z]`: true, `[\xA0-\uD7FF\uE000-\uFFFF]`: true, `[À-\u00FF]`: true, `[b-\u0061]`: false, `\uD83C\uDF00+`: true, `[\uD83C\uDF00-\uD83D\uDE4F]`: true,
		`\p{Script=Latn}`: true, `\p{sc=Grek}`: true, `a{3,1}`: false, `^.{1,2000}$**`: false, `(?<x>a)(?<x>b)`: false, `\cZ[\cA-\cZ]`: true, `\u{1F600}`: true, `\u{110000}`: false, `(?<$a>b)\k<$a>`: true, `(?!a)(`: false, `(?=x)[b-a]`: false, `\p{L}a**`: false, `a\1`: false, `(a)\2`: false, `(?<x>a)\k<x>`: true, `\k<x>`: false, `\k`: false,
		`\p{Xx}`: false, `\p{Foo=Bar}`: false, `\p{LC}`: true, `\p{Uppercase_Letter}+`: true, `[\p{L}\p{N}_]`: true, `\p{gc=Lu}`: true, `[\b]`: true, `[\u0041-\u005a]`: true, `^.{1,2000}$`: true, `[\1]`: false, `a**`: false, `[b-a]`: false, `\pL`: false, `\A\z`: false, `\x41\u0041\u{41}\cA`: true, `\xZ`: false, `é+`: true, `[é]`: true, `\é`: false, ``: true, `\`: false,
		`a\/b`: true, `\_`: false, `\"`: false, `[^\s@]+@[^\s@]+`: true, `\'`: false, `\ `: false, `\:`: false, `[\:]`: false,
	} {
		schema, err := json.Marshal(map[string]any{"properties": map[string]any{"a": map[string]any{"pattern": pattern}}})
		if err != nil {
			t.Fatal(err)
		}
		if got, found := ForeignPattern(schema); found == compiles || found && got != pattern {
			t.Errorf("%s compiles: %t", pattern, !found)
		}
		schema, err = json.Marshal(map[string]any{"anyOf": []any{map[string]any{"patternProperties": map[string]any{pattern: true}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, found := ForeignPattern(schema); found == compiles {
			t.Errorf("as the name of properties, %s compiles: %t", pattern, !found)
		}
	}
	if p, found := ForeignPattern(json.RawMessage(`{"properties":{"pattern":{"type":"string"}},"default":{"pattern":"(?i)"}}`)); found {
		t.Errorf("%s is a property", p)
	}
}
