package compare

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// ranOn is a job that ran on a GPU from when to when, s.
func ranOn(node, gpu string, atS, endS float64) job {
	at := func(s float64) time.Time { return time.Unix(0, int64(1e9*s)) }
	return job{node: node, gpu: gpu, began: at(atS), ended: at(endS)}
}

func TestFillS(t *testing.T) {
	r := &ran{began: time.Unix(0, 0), jobs: []job{
		ranOn("n1", "0", 1, 8), ranOn("n1", "1", 2, 8), ranOn("n1", "0", 4, 8), ranOn("n1", "1", 3, 8),
		ranOn("n2", "0", 5, 8), ranOn("n2", "1", 6, 8), ranOn("n2", "1", 7, 100),
	}}
	for _, c := range []struct {
		s    shape
		jobs int
		want float64
	}{
		{shape{2, 2}, 1, 4},   // 2 and 6
		{shape{2, 2}, 2, 52},  // 4, and n2's first GPU never has two
		{shape{4, 2}, 1, 52},  // two nodes have none
		{shape{2, 4}, 1, 100}, // two GPUs of each have none
	} {
		must.Equal(t, fillS(r, c.s, c.jobs), c.want, "%v, %d jobs", c.s, c.jobs)
	}
}

func TestFollowS(t *testing.T) {
	r := &ran{jobs: []job{
		ranOn("n1", "0", 2, 8), ranOn("n1", "1", 2, 30), ranOn("n1", "0", 10.5, 20), ranOn("n1", "1", 30.25, 40),
	}}
	must.Equal(t, followS(r), 0.25) // 2.5 and 0.25, the first two follow nothing
}

// Jobs that only sleep run on plain Slurm, where none of our programs is.
func TestPlainSlurm(t *testing.T) {
	o := testOptions(t)
	t.Parallel()
	o.scale, o.jobs = 1, 2
	p := &paces{}
	plain := o.pair(p, shape{1, 1})[0]
	plain.command = func(string) string { return "sleep 0" }
	runAll(t, o, plain)
	must.Equal(t, p.Plain.Taken > 0 && p.Plain.FollowS > 0, true, p)
}
