package e2e

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// TestSoak submits, cancels, requeues and kills at random for SLURMBRIDGE_SOAK
// (make soak); in the end every job has run or was cancelled by its owner.
func TestSoak(t *testing.T) {
	if os.Getenv("SLURMBRIDGE_SOAK") == "" {
		t.Skip("make soak runs it")
	}
	length, err := time.ParseDuration(os.Getenv("SLURMBRIDGE_SOAK"))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, options{Options: slurmtest.Options{Nodes: 2, Scheduler: "bf_interval=2"}})
	apps := []string{small, "m9000g90", "m500g10", ""}
	cancelled := map[string]bool{}
	var ids []string
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond) {
		switch k := rnd.IntN(20); {
		case k < 14 && len(ids)-len(cancelled) < 10_000:
			ids = append(ids, r.submit([]string{ann, bob}[rnd.IntN(2)], apps[rnd.IntN(len(apps))], 3*rnd.Float64()))
		case k < 16 && len(ids) > 0:
			id := ids[rnd.IntN(len(ids))]
			if r.job(id)["JobState"] == "PENDING" {
				cancelled[id] = true
				r.cancel(id)
			}
		case k < 17 && len(ids) > 0:
			// One that has ended can't be requeued; that is no fault.
			_, _ = r.Run(t.Context(), "scontrol", "requeue", ids[len(ids)-1])
		case k < 18:
			r.kill()
			r.start()
		case k < 19:
			r.StopController()
			if err := r.StartController(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d jobs, %d cancelled", len(ids), len(cancelled))
	left := func() (n int) {
		for _, id := range ids {
			switch r.job(id)["JobState"] {
			case "PENDING", "RUNNING", "COMPLETING":
				n++
			}
		}
		return n
	}
	if !slurmtest.Wait(t.Context(), 10*time.Minute, func() bool { return left() == 0 }) {
		t.Errorf("%d jobs have not ended", left())
	}
}
