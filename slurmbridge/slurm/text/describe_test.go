package text

import (
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

func TestParseDescriptions(t *testing.T) {
	const n = "~N"
	row := func(head, comment string) string { return head + n + comment + n + "\n" }
	out := row("7|N/A|FAILED|256|1", "") + row("20|3|COMPLETED|0|0", "the site's own | "+strings.Repeat("x", 2000)) +
		row("20|[4-9]|PENDING|0|0", "") + row("8|N/A|RUNNING|15|1", "slurmbridge: a\nb")
	got, err := ParseDescriptions([]byte(out), n)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got["7"] != (job.Description{State: "FAILED", ExitCode: 1, Requeue: true}) {
		t.Errorf("%+v", got)
	}
	if d := got["20_3"]; d.State != "COMPLETED" || d.Requeue || len(d.AdminComment) != maxComment {
		t.Errorf("the task: %+v", d)
	}
	if d := got["8"]; d.AdminComment != "slurmbridge: a\nb" || d.ExitCode != 128+15 {
		t.Errorf("%+v", d)
	}
	for text, want := range map[string]int{"0": 0, "0:0": 0, "3:0": 3, "768": 3, "9": 137, "0:9": 137, "": 0, "x": 0} {
		if got := exitCode([]byte(text)); got != want {
			t.Errorf("exit code %q: %d, want %d", text, got, want)
		}
	}
	for _, bad := range []string{"7|N/A|FAILED|1|1", row("7|FAILED", ""), "7|N/A|FAILED|1|1" + n + "x", row("7|N/A|FAILED|1|1", "") + "8"} {
		if _, err := ParseDescriptions([]byte(bad), n); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

func FuzzParseDescriptions(f *testing.F) {
	f.Add("7|N/A|FAILED|1|1~N(null)~N\n20|3|COMPLETED|0|0~Nx~N\n")
	f.Add("~N~N")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseDescriptions([]byte(s), "~N")
		if err != nil && got != nil {
			t.Error("an answer beside an error")
		}
		for ref := range got {
			if !ValidRef(ref) {
				t.Errorf("%q is no job", ref)
			}
		}
	})
}
