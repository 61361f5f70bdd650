package slurm

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// words splits a line as scontrol does (_get_command in scontrol.c, 22.05 to 26.05).
func words(line string) []string {
	var out []string
	for i := 0; i < len(line); i++ {
		if strings.IndexByte(" \t\n\v\f\r", line[i]) >= 0 {
			continue
		}
		start := i
		double, single := false, false
		for i++; i < len(line); i++ {
			switch {
			case line[i] == '"':
				double = !double
				continue
			case line[i] == '\'':
				single = !single
				continue
			case double || single:
				continue
			}
			if strings.IndexByte(" \t\n\v\f\r", line[i]) >= 0 {
				break
			}
		}
		out = append(out, line[start:min(i, len(line))])
	}
	return out
}

// Whatever an update says, each of its lines is one command with the update's own words, or it isn't
// said that way.
func TestLinesSayWhatTheUpdateSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		comment := rapid.OneOf(rapid.String(), rapid.StringMatching(`slurmbridge: [a-z'"= ;!]{0,40}`)).Draw(t, "comment")
		gres, node := "mps:50", rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node")
		u := job.Update{Gres: &gres, StartNow: rapid.Bool().Draw(t, "now"), AdminComment: &comment}
		if rapid.Bool().Draw(t, "pinned") {
			u.ReqNodes = &node
		}
		for range rapid.IntRange(1, 400).Draw(t, "jobs") {
			u.Jobs = append(u.Jobs, rapid.StringMatching(`[1-9][0-9]{0,8}(_[0-9]{1,5})?`).Draw(t, "ref"))
		}
		if checkUpdate(u) != nil {
			t.Skip("refused")
		}
		lines, ok := linesOf(7, u)
		if !ok {
			if !strings.Contains(comment, `"`) && strings.IndexFunc(comment, func(r rune) bool { return r < ' ' || r > '~' }) < 0 && len(comment) < 200 {
				t.Fatalf("it can't be said: %q", comment)
			}
			return
		}
		var refs []string
		for _, l := range lines {
			if strings.Count(l.text, "\n") != 1 || !strings.HasSuffix(l.text, "\n") || len(l.text) > maxLine || l.of != 7 {
				t.Fatalf("%q", l.text)
			}
			got := words(strings.TrimSuffix(l.text, "\n")) // as readline gives it
			set := settings(u)
			if strings.Contains(comment, " ") {
				set[len(set)-1] = `AdminComment="` + comment + `"`
			}
			if len(got) != 2+len(set) || got[0] != "update" || strings.Join(got[2:], "\x00") != strings.Join(set, "\x00") {
				t.Fatalf("%q is %q", l.text, got)
			}
			named, isNames := strings.CutPrefix(got[1], "JobId=")
			if !isNames || u.ReqNodes != nil && strings.Contains(named, ",") {
				t.Fatalf("%q", l.text)
			}
			refs = append(refs, strings.Split(named, ",")...)
		}
		if u.ReqNodes == nil && strings.Join(refs, " ") != strings.Join(u.Jobs, " ") || len(refs) != len(u.Jobs) {
			t.Fatalf("lines of %v for %v", refs, u.Jobs)
		}
	})
}

// Which updates failed is known where each line names a job.
func TestUnexplained(t *testing.T) {
	for stderr, want := range map[string]bool{
		"Invalid job id specified for job 7\n":                                                     false,
		"scontrol: error: a key it doesn't know\nInvalid job id specified for job 7\n22_[2]: no\n": false,
		"scontrol: error: Invalid job ID 1,2\n":                                                    true,
		"Request aborted\nInvalid job id specified for job 7\n":                                    true,
		"": true,
	} {
		if got := unexplained(stderr, len(text.UpdateErrors(stderr)) > 0); got != want {
			t.Errorf("%q: %v", stderr, got)
		}
	}
}
