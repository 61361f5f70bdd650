package settings

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// Rule is what a text, or each text of a list, must be. A field's tag names a rule, or says a range ("20s to 1h", "1 to
// 100, or 0") or words ("debug, info or warn"); without a tag any value of the field's type is right.
type Rule struct {
	Takes string // ends "is …, but takes"
	Right func(s string) bool
	Some  bool // the list may not be empty
}

const aPath = "a path from the root, such as /run/slurmbridge"

func matches(expr string) func(string) bool {
	of := pattern.Lazy(expr)
	return func(s string) bool { return of().MatchString(s) }
}

// rules are those for every program.
var rules = map[string]Rule{
	"path":         {Takes: aPath, Right: filepath.IsAbs},
	"path or none": {Takes: aPath, Right: func(s string) bool { return s == "" || filepath.IsAbs(s) }},
	"name":         {Takes: "a partition's name", Right: matches(`^[A-Za-z0-9_.+-]*$`)},
	"word": {
		Takes: "a name of small letters, digits, '-' and '_'", Right: matches(`^[a-z][a-z0-9_-]{0,63}$`),
	},
	"address": {Takes: "host:port or :port, such as :9797", Right: func(s string) bool {
		_, port, err := net.SplitHostPort(s)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		return s == "" || err == nil
	}},
}

// obey notes a value that isn't what its field's tag says.
func (r *reading) obey(n *yaml.Node, f field, path string) {
	rule, named := rules[f.is]
	if own, is := r.Rules[f.is]; is {
		rule, named = own, true
	}
	list, isList := f.Interface().([]string)
	text, isText := f.Interface().(string)
	if isText {
		list = []string{text}
	}
	switch {
	case f.is == "":
	case named && rule.Some && len(list) == 0:
		r.fail(n, path, "names nothing: leave it out for any")
	case named:
		if i := slices.IndexFunc(list, func(s string) bool { return !rule.Right(s) }); i >= 0 {
			verb := map[bool]string{true: "has", false: "is"}[isList]
			r.fail(n, path, fmt.Sprintf("%s %.60q, but takes %s", verb, list[i], rule.Takes))
		}
	case isText:
		if !slices.Contains(strings.Split(strings.ReplaceAll(f.is, " or ", ", "), ", "), text) {
			r.fail(n, path, fmt.Sprintf("is %s, but takes %s", show(n), f.is))
		}
	default:
		span, zero := strings.CutSuffix(f.is, ", or 0")
		from, to, _ := strings.Cut(span, " to ")
		// Written so that NaN is refused.
		if v := figure(f.Interface()); !(v >= figure(from) && v <= figure(to) || zero && v == 0) {
			value := n.Value
			if d, is := f.Interface().(time.Duration); is {
				value = Short(d)
			}
			r.fail(n, path, fmt.Sprintf("is %s, but takes %s", value, f.is))
		}
	}
}

// figure is what is compared of a number, a duration, or a bound of a range.
func figure(v any) float64 {
	s := fmt.Sprint(v)
	if d, err := time.ParseDuration(s); err == nil && s != "0" {
		return float64(d)
	}
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// Short prints a duration without its zeros: 5m, not 5m0s.
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// meant suggests the known name nearest to what was written.
func meant(name string, known []string) string {
	best, at := "", min(len(name)/3+2, 4) // so many edits apart is another word
	for _, k := range known {
		if d := distance(name, k); d < at {
			best, at = k, d
		}
	}
	near := func(k string) bool { return strings.Contains(k, name) || strings.Contains(name, k) }
	if i := slices.IndexFunc(known, near); best == "" && i >= 0 {
		best = known[i] // a word of the name, say "partitions", may lead further
	}
	if best == "" {
		return "; the settings are " + strings.Join(known, ", ")
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is Levenshtein's: the insertions, deletions and replacements that make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
