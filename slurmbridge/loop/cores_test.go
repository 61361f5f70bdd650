package loop_test

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// A job that needs most of a node's cores starts when plain Slurm would start it, though smaller ones come all the time
// that would take each core as soon as it is free. A job with hand-written shares was there before: groups leave no room.
func TestManyCoresAreFreeInTime(t *testing.T) {
	m, b := started(t, node("n1", 2, 16))
	hand := m.submit("bob", time.Second, light(), true)
	hand.Dependency = job.Dependencies{}
	hand.Request = job.GPURequest{Kind: job.Shares, Sharing: job.MPS, Count: 10, Raw: "gres:mps:10"}
	tick(t, b, m, 2*time.Second)
	small := func() { m.submit("ann", 100*time.Second, app("small", 100, 0.2, 1000), true).CPUs = 4 }
	for range 6 {
		small()
		tick(t, b, m, 10*time.Second)
	}
	large := m.submit("ann", time.Minute, app("large", 60, 0.2, 1000), true)
	large.CPUs = 12
	plain := m.now.Add(4 * time.Minute) // three jobs of 100 s are before it on each GPU, and have run for a minute
	for m.now.Before(plain.Add(20 * time.Second)) {
		small()
		small()
		tick(t, b, m, 10*time.Second)
	}
	must.Equal(t, large.State, job.Running)
}
