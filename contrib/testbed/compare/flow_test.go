package flow

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// ran is a job that ran on a GPU from when to when, s.
func ran(node, gpu string, atS, endS float64) cluster.Job {
	at := func(s float64) time.Time { return time.Unix(0, int64(1e9*s)) }
	return cluster.Job{Node: node, GPU: gpu, Began: at(atS), Ended: at(endS)}
}

func TestFillS(t *testing.T) {
	r := &cluster.Ran{Began: time.Unix(0, 0), Jobs: []cluster.Job{
		ran("n1", "0", 1, 8), ran("n1", "1", 2, 8), ran("n1", "0", 4, 8), ran("n1", "1", 3, 8),
		ran("n2", "0", 5, 8), ran("n2", "1", 6, 8), ran("n2", "1", 7, 100),
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
		if got := fillS(r, c.s, c.jobs); got != c.want {
			t.Errorf("%v, %d jobs: %v, want %v", c.s, c.jobs, got, c.want)
		}
	}
}

func TestFollowS(t *testing.T) {
	r := &cluster.Ran{Jobs: []cluster.Job{
		ran("n1", "0", 2, 8), ran("n1", "1", 2, 30), ran("n1", "0", 10.5, 20), ran("n1", "1", 30.25, 40),
	}}
	if got := followS(r); got != 0.25 { // 2.5 and 0.25, the first two follow nothing
		t.Error(got)
	}
}

// Jobs that only sleep run on plain Slurm, where none of our programs is.
func TestPlainSlurm(t *testing.T) {
	base := &cluster.Setup{Build: "../../../build"}
	cluster.Require(t, base.Build)
	t.Parallel()
	p, _, err := run(t.Context(), &options{base: base}, shape{1, 1}, []string{app(0), app(0)}, 1, false)
	must.OK(t, err)
	must.Equal(t, p.Taken > 0 && p.FollowS > 0, true, p)
}
