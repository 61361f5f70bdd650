package job

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzParseTerms(f *testing.F) {
	for _, s := range []string{
		"app=lmp share:no", "share:max-slowdown=1.15,share:with=array;app=a.b-c_d", "share:max-slowdown=NaN", "app=", "share:", "share:yes\tshare:max-slowdown=1e9",
		"app=\xff app=" + strings.Repeat("x", 65),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, comment string) {
		terms := ParseTerms(comment)
		if terms.App != "" && (!validApp(terms.App) || !strings.Contains(comment, terms.App)) {
			t.Errorf("app %q", terms.App)
		}
		if m := terms.MaxSlowdown; m != 0 && !(m >= 1 && m <= 100) {
			t.Errorf("slowdown %v", m)
		}
		for _, s := range terms.Ignored {
			if len(s) > 600 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x1b") {
				t.Errorf("%q", s)
			}
		}
		// Words that are no terms change nothing, wherever they stand.
		again := ParseTerms("hello " + comment + "\nsee ticket 7")
		if again.App != terms.App || again.MaxSlowdown != terms.MaxSlowdown || again.NoShare != terms.NoShare || again.ArrayOnly != terms.ArrayOnly || len(again.Ignored) != len(terms.Ignored) {
			t.Errorf("%+v became %+v", terms, again)
		}
	})
}
