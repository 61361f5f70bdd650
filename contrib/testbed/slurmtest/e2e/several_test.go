package e2e

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// An empty node of four GPUs is filled at once, each group on the GPU that it is planned for. No GPU ever has two
// users.
func TestSeveralGPUsAreFilledAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    slurmtest.Options
	}{
		{"shard", slurmtest.Options{GPUs: 4, Sharing: "shard"}},
		{"mps", slurmtest.Options{GPUs: 4, Sharing: "mps"}},
		{"least loaded", slurmtest.Options{GPUs: 4, Sharing: "shard", Prepare: leastLoaded}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			least := c.o.Prepare != nil
			// submitting takes a busy machine a while
			r := newRig(t, options{Options: c.o, settings: settings{Lease: time.Minute}})
			if least && !hasLeastLoaded(r.Cluster) {
				t.Skip("Slurm 23.11 or later has LL_SHARED_GRES: make test-compat")
			}
			ids := r.atOnce(24, func(i int) string {
				return r.submit([]string{ann, bob}[i/12], small, 9+float64(i%12)/3, "--time=3")
			})
			for i, id := range ids[:12] {
				r.reach("RUNNING COMPLETED", id)
				if want := string(rune('0' + i/3)); !least && r.visible(id) != want {
					t.Errorf("job %d is on GPU %s, not on %s", i, r.visible(id), want)
				}
				if least && i == 3 {
					break // one on each of three GPUs, and three on the last
				}
			}
			r.noMixing(ids)
		})
	}
}

// GPUs of a node without shares, such as those that MIG splits, are left alone: jobs that share fill the
// others, and jobs with whole GPUs have those.
func TestGPUsWithoutShares(t *testing.T) {
	t.Parallel()
	for _, o := range []slurmtest.Options{
		{GPUs: 4, Sharing: "shard", Unshared: []int{0, 2}},
		{GPUs: 4, Sharing: "mps", Unshared: []int{3}},
	} {
		t.Run(o.Sharing, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, options{Options: o, settings: settings{
				Lease: time.Minute, SharersOnly: []string{slurmtest.Partition},
			}})
			ids := r.atOnce(14, func(i int) string {
				if i < 12 {
					return r.submit(ann, small, 6+float64(i%6)/2, "--time=3")
				}
				return r.whole("1", 6)
			})
			shared := ids[:12]
			r.noMixing(ids)
			for _, id := range shared {
				if gpu, err := strconv.Atoi(r.visible(id)); err != nil || slices.Contains(o.Unshared, gpu) {
					t.Errorf("job %s shares GPU %q", id, r.visible(id))
				}
			}
			// The jobs of whole GPUs come behind them: some keep their turn before those alone.
			if n := r.none(shared); n < 6 {
				t.Errorf("%d of %d shared a GPU", n, len(shared))
			}
		})
	}
}

// leastLoaded makes Slurm take the least loaded of the GPUs that have as many shares free.
func leastLoaded(c *slurmtest.Cluster) error {
	if hasLeastLoaded(c) {
		c.Options.Extra = append(c.Options.Extra, "SelectTypeParameters=CR_Core_Memory,LL_SHARED_GRES")
	}
	return wakes(c)
}

func hasLeastLoaded(c *slurmtest.Cluster) bool {
	return !text.ParseRelease(c.Release).Before(text.Release{23, 11, 0})
}

// visible are the GPUs that a job sees, once it has written them down.
func (r *rig) visible(id string) string {
	r.t.Helper()
	var gpus string
	r.until("job "+id+" writes which GPU it has", func() bool {
		out, err := os.ReadFile(r.Path("out", id+".gpu"))
		gpus = strings.TrimSpace(string(out))
		return err == nil && gpus != ""
	})
	return gpus
}
