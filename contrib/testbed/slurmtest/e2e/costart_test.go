package e2e

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
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
		n := 0
		user := ""
		for _, id := range ids {
			switch r.job(id)["JobState"] {
			case "RUNNING":
				if user != "" && user != users[id] {
					t.Errorf("%s of %s runs beside a job of %s", id, users[id], user)
				}
				user = users[id]
			case "COMPLETED":
				n++
			}
		}
		return n == len(ids)
	}
	if !slurmtest.Wait(t.Context(), 60*time.Second, done) {
		t.Error("not all jobs have ended")
	}
}
