package schema

import (
	"cmp"
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
			name = fmt.Sprintf("the name %q", k.Property) // the causes have no location
		}
		if len(v.Causes) == 0 && len(faults) < maxFaults {
			place := words.Clip(cmp.Or(name, placeOf(v.InstanceLocation), "the arguments"), 128)
			faults = append(faults, words.Clip(place+": "+explainFault(v.ErrorKind), 512))
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

// explainFault states what a value is, and what the schema wants.
func explainFault(fault jsonschema.ErrorKind) string {
	switch k := fault.(type) {
	case *kind.Minimum:
		return outside("at least", k.Got, k.Want)
	case *kind.Maximum:
		return outside("at most", k.Got, k.Want)
	case *kind.ExclusiveMinimum:
		return outside("more than", k.Got, k.Want)
	case *kind.ExclusiveMaximum:
		return outside("less than", k.Got, k.Want)
	case *kind.MultipleOf:
		return outside("a multiple of", k.Got, k.Want)
	case *kind.Pattern: // the library's text has each backslash twice
		return fmt.Sprintf("%q does not match the pattern %s", k.Got, k.Want)
	}
	return fault.LocalizedString(message.NewPrinter(language.English))
}

// outside explains a number that is outside of a limit. The library's own text is rounded: 2×10⁰⁸ for 200000001.
func outside(limit string, got, want *big.Rat) string {
	return fmt.Sprintf("got %s, want %s %s", decimal(got), limit, decimal(want))
}

// decimal is a number as people write it: 100000000, 1.5.
func decimal(r *big.Rat) string {
	if r.IsInt() {
		return words.Clip(r.Num().String(), 64)
	}
	return strings.TrimRight(r.FloatString(9), "0")
}
