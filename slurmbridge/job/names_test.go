package job

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Its owner's word goes before the site's: the comment, the variable, then the first name that matches.
func TestAppNamed(t *testing.T) {
	var names []AppName
	for _, s := range []string{"nf-train*=train", "*/jupyter=notebook", "a=b=c", "*-x=x"} {
		n := must.Get(ParseAppName(s))(t)
		names = append(names, n)
	}
	for _, c := range []struct{ comment, variable, name, want string }{
		{"app=mine", "yours", "nf-train_(1)", "mine"},
		{"share:no", "yours", "nf-train_(1)", "yours"},
		{"", "", "nf-train_(1)", "train"},
		{"", "", "sys/dashboard/sys/jupyter", "notebook"},
		{"", "", "a=b", "c"},
		{"", "", "nf-train-x", "train"},
		{"", "", "other", ""},
	} {
		j := &Job{Comment: c.comment, Name: c.name, Note: Note{App: c.variable}}
		terms := ParseTerms(j.Comment)
		must.Equal(t, AppNamed(j, &terms, names), c.want, c)
	}
	for _, s := range []string{"", "train", "=train", "a=", "a=b c", "[=x", "a=../x"} {
		if n, err := ParseAppName(s); err == nil {
			t.Errorf("%q is %+v", s, n)
		}
	}
}

// The note of a submission comes back as it was written, and what is none is left alone.
func TestNoteOfAnApplication(t *testing.T) {
	n := Note{App: "md-1.2", Args: "-n 5", Defaults: Defaults{CPUs: 2}}
	if got, rest := ParseNote(n.Comment("on n1")); got != n || rest != CommentPrefix+"on n1" {
		t.Errorf("%+v, %q", got, rest)
	}
	if got, _ := ParseNote(CommentPrefix + "(app ../x) on n1"); got.App != "" {
		t.Errorf("%+v", got)
	}
}
