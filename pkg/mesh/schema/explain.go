package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/extmesh/extmesh/internal/words"
)

// maxFaults is the maximum number of faults in one error.
const maxFaults = 8

// explainInvalid lists the innermost faults.
func explainInvalid(v *jsonschema.ValidationError) error {
	var faults []string
	var walk func(v *jsonschema.ValidationError, name string)
	walk = func(v *jsonschema.ValidationError, name string) {
		if k, ok := v.ErrorKind.(*kind.PropertyNames); ok {
			name = "the name " + literal(k.Property) // the causes have no location
		}
		if len(v.Causes) == 0 && len(faults) < maxFaults {
			place := cmp.Or(name, placeOf(v.InstanceLocation))
			faults = append(faults, words.Clip(explainFault(words.Clip(place, 128), v.ErrorKind), 512))
		}
		for _, cause := range v.Causes {
			walk(cause, name)
		}
	}
	walk(v, "")
	return errors.New(strings.Join(faults, "; "))
}

// placeOf is the place of a value in the arguments, as in JavaScript: address.city, tags[2]. It is "" for the arguments
// themselves.
func placeOf(tokens []string) string {
	var b strings.Builder
	for i, token := range tokens {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil && i > 0 {
			b.WriteString("[" + token + "]")
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	return b.String()
}

// explainFault states the fault of the value at place: what it is, and what the schema wants.
func explainFault(place string, fault jsonschema.ErrorKind) string {
	what := place
	if place == "" {
		what = "the arguments"
	}
	switch k := fault.(type) {
	case *kind.Required:
		return eachOf(k.Missing, func(name string) string { return memberOf(place, name) + " is missing" })
	case *kind.AdditionalProperties:
		return eachOf(k.Properties, func(name string) string { return memberOf(place, name) + " is unknown" })
	case *kind.Type:
		return fmt.Sprintf("%s is %s, not %s", what, withArticle(k.Got), alternatives(k.Want, withArticle))
	case *kind.Enum:
		return fmt.Sprintf("%s is %s, not %s", what, literal(k.Got), alternatives(k.Want, literal))
	case *kind.Const:
		return fmt.Sprintf("%s is %s, not %s", what, literal(k.Got), literal(k.Want))
	case *kind.Pattern:
		return fmt.Sprintf("%s is %s, which does not match %s", what, literal(k.Got), k.Want)
	}
	if text, ok := explainLimit(what, fault); ok {
		return text
	}
	return what + ": " + fault.LocalizedString(message.NewPrinter(language.English))
}

// explainLimit explains a number, or a length, that is outside of a limit.
func explainLimit(what string, fault jsonschema.ErrorKind) (text string, ok bool) {
	number := func(got *big.Rat, limit string, want *big.Rat) (string, bool) {
		return fmt.Sprintf("%s is %s; %s %s", what, decimal(got), limit, decimal(want)), true
	}
	length := func(got int, unit, limit string, want int) (string, bool) {
		if got == 1 {
			unit = strings.TrimSuffix(unit, "s")
		}
		return fmt.Sprintf("%s has %d %s; %s %d", what, got, unit, limit, want), true
	}
	switch k := fault.(type) {
	case *kind.Minimum:
		return number(k.Got, "at least", k.Want)
	case *kind.Maximum:
		return number(k.Got, "at most", k.Want)
	case *kind.ExclusiveMinimum:
		return number(k.Got, "more than", k.Want)
	case *kind.ExclusiveMaximum:
		return number(k.Got, "less than", k.Want)
	case *kind.MultipleOf:
		return number(k.Got, "a multiple of", k.Want)
	case *kind.MinLength:
		return length(k.Got, "characters", "at least", k.Want)
	case *kind.MaxLength:
		return length(k.Got, "characters", "at most", k.Want)
	case *kind.MinItems:
		return length(k.Got, "items", "at least", k.Want)
	case *kind.MaxItems:
		return length(k.Got, "items", "at most", k.Want)
	}
	return "", false
}

// eachOf joins one text for each name, at most maxFaults.
func eachOf(names []string, text func(string) string) string {
	var out []string
	for _, name := range names[:min(len(names), maxFaults)] {
		out = append(out, text(words.Clip(name, 64)))
	}
	return strings.Join(out, "; ")
}

func memberOf(place, name string) string { return strings.TrimPrefix(place+"."+name, ".") }

// alternatives is "a", "a or b", "a, b or c"; of many, the first ones.
func alternatives[T any](all []T, text func(T) string) string {
	var out []string
	for _, v := range all[:min(len(all), maxFaults)] {
		out = append(out, text(v))
	}
	if len(all) > maxFaults {
		return strings.Join(out, ", ") + ", …"
	}
	return words.Or(out)
}

// withArticle is a JSON type with its article.
func withArticle(name string) string {
	switch name {
	case "integer", "object", "array":
		return "an " + name
	case "null":
		return name
	}
	return "a " + name
}

// literal is a value as JSON, clipped.
func literal(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return words.Clip(fmt.Sprint(v), 64)
	}
	return words.Clip(string(text), 64)
}

// decimal is a number as people write it: 100000000, 1.5.
func decimal(r *big.Rat) string {
	if r == nil {
		return "?"
	}
	if r.IsInt() {
		return words.Clip(r.Num().String(), 64)
	}
	return strings.TrimRight(r.FloatString(9), "0")
}
