package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

const small = "m3000g30"

func TestTwoAndThreeStartTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	var a, b string
	r.unseen(func() { // else the first may have started when the second comes
		a, b = r.submit(ann, small, 4), r.submit(ann, small, 4)
	})
	t.Logf("two: %v apart", r.together(a, b))
	c := r.submit(ann, small, 2)
	d := r.submit(ann, small, 2)
	e := r.submit(ann, small, 2)
	r.state(30*time.Second, e, "COMPLETED")
	r.state(30*time.Second, d, "COMPLETED")
	r.state(30*time.Second, c, "COMPLETED")
}

func TestUsersNeverSharePascal(t *testing.T) {
	t.Parallel()
	r := newRig(t, options{})
	ids := []string{
		r.submit(ann, small, 2), r.submit(bob, small, 2), r.submit(ann, small, 2), r.submit(bob, small, 2), r.submit(ann, small, 2),
	}
	users := map[string]string{ids[0]: ann, ids[1]: bob, ids[2]: ann, ids[3]: bob, ids[4]: ann}
	done := func() bool {
		// All jobs at one moment: between two questions one may end and another start.
		running := must.Get(r.Run(t.Context(), "squeue", "--noheader", "--states=RUNNING", "--format=%i"))(t)
		user := ""
		for id := range strings.FieldsSeq(running) {
			if user != "" && users[id] != user {
				t.Errorf("job %s of %s runs next to a job of %s", id, users[id], user)
			}
			user = users[id]
		}
		return !slices.ContainsFunc(ids, func(id string) bool { return r.job(id)["JobState"] != "COMPLETED" })
	}
	if !r.Wait(t.Context(), 60*time.Second, done) {
		t.Error("not all jobs have ended")
	}
}
