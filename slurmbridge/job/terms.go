package job

import (
	"fmt"
	"strconv"
	"strings"
)

// Terms is what a job's owner says about sharing in --comment.
type Terms struct {
	App         string  // app=NAME
	NoShare     bool    // share:no
	MaxSlowdown float64 // share:max-slowdown=1.15; 0 = the site's default
	// ArrayOnly: share only with tasks of the same array (share:with=array).
	ArrayOnly bool
	Retry     bool // share:retry: if it fails while sharing, for whatever reason, it may run again, alone
	// Ignored holds a sentence per invalid term; the job runs without that term.
	Ignored []string
}

// None reports whether the owner says nothing about sharing.
func (t *Terms) None() bool {
	return t.App == "" && !t.NoShare && t.MaxSlowdown == 0 && !t.ArrayOnly && !t.Retry && len(t.Ignored) == 0
}

// ParseTerms reads terms out of a comment. Terms are separated by blanks,
// commas or semicolons; other words belong to other tools and
// are passed over.
func ParseTerms(comment string) Terms {
	var t Terms
	for _, word := range strings.FieldsFunc(comment, func(r rune) bool {
		return r == ' ' || r == '\t' || r == '\n' || r == ',' || r == ';'
	}) {
		if name, ok := strings.CutPrefix(word, "app="); ok {
			if validApp(name) {
				t.App = name
			} else {
				t.ignore("app=%.64q: a name has 1 to 64 letters, digits, '.', '_' or '-'", name)
			}
			continue
		}
		term, ok := strings.CutPrefix(word, "share:")
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(term, "=")
		switch {
		case term == "no":
			t.NoShare = true
		case term == "with=array":
			t.ArrayOnly = true
		case term == "retry":
			t.Retry = true
		case key == "max-slowdown":
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || !(v >= 1 && v <= 100) {
				t.ignore("share:max-slowdown=%.32q: it takes a number from 1 to 100, for example 1.15", value)
				continue
			}
			t.MaxSlowdown = v
		default:
			t.ignore("share:%.64q: known are share:no, share:with=array, share:retry and share:max-slowdown=NUMBER", term)
		}
	}
	return t
}

func (t *Terms) ignore(format string, args ...any) {
	t.Ignored = append(t.Ignored, fmt.Sprintf(format, args...))
}

func validApp(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return false
		}
	}
	return true
}
