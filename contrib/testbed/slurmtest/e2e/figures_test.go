package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
)

// TestFigures measures, and asserts nothing about speed: how long after its release was answered a group
// starts, how far apart its members do, and how long a GPU is idle between groups, against plain
// Slurm's idle time between jobs, both with the hooks that a site has; and how long those
// take. SLURMBRIDGE_FIGURES=1 runs it (make bench), any other number of groups that many, and
// SLURMBRIDGE_FIGURES_ROOTS names other releases' roots, for the same in one run; -run
// Figures/default/plain picks one measurement.
func TestFigures(t *testing.T) {
	groups, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_FIGURES"))
	if err != nil {
		t.Skip("make bench runs it")
	}
	if groups == 1 {
		groups = 20
	}
	roots := append([]string{""}, strings.Fields(os.Getenv("SLURMBRIDGE_FIGURES_ROOTS"))...)
	for _, s := range []struct{ name, scheduler string }{
		{"default", ""},
		{"advised", doctor.Scheduler},
	} {
		for _, root := range roots {
			o := slurmtest.Options{Scheduler: s.scheduler, Root: root, Prepare: installHooks(t)}
			name := s.name
			if root != "" {
				name += "-" + filepath.Base(root)
			}
			t.Run(name+"/bridged", func(t *testing.T) { bridgedFigures(t, o, groups) })
			t.Run(name+"/plain", func(t *testing.T) {
				r := newRig(t, options{Options: o, quiet: true})
				var ids []string
				for range groups {
					ids = append(ids, r.timed(ann, 1, "--gres=gpu:titanxp:1"))
				}
				_, gaps := r.wait(ids, 1)
				t.Logf("Slurm %s, SchedulerParameters=%s: GPU idle between jobs %s", r.Release, o.Scheduler, spread(gaps))
			})
		}
	}
}

func bridgedFigures(t *testing.T, o slurmtest.Options, groups int) {
	t.Helper()
	r := newRig(t, options{Options: o, noJoin: true})
	// Two that fill the memory together: each pair runs without a third.
	var ids []string
	for range 2 * groups {
		ids = append(ids, r.timed(ann, 1, "--gres=gpu:shared", "--comment=app=m5700g30"))
	}
	skews, gaps := r.wait(ids, 2)
	t.Logf("Slurm %s, SchedulerParameters=%s: %d groups, skew %s; GPU idle between groups %s",
		r.Release, o.Scheduler, len(skews), spread(skews), spread(gaps))
	// On an idle GPU a group starts by its release; one that follows, by its predecessor's end.
	var alone []time.Duration
	for range groups / 2 {
		ids := []string{r.timed(ann, 1, "--gres=gpu:shared", "--comment=app=m5700g30"), r.timed(ann, 1, "--gres=gpu:shared", "--comment=app=m5700g30")}
		r.wait(ids, 1)
		if at, ok := r.released(ids[0]); ok {
			alone = append(alone, r.mark(ids[0], ".start").Sub(at))
		}
	}
	t.Logf("Slurm %s, SchedulerParameters=%s: %d groups on an idle GPU start after the answer to their release by %s", r.Release, o.Scheduler, len(alone), spread(alone))
	for _, hook := range []string{"prolog", "epilog", "epilog-slurmctld"} {
		t.Logf("%s: %s", hook, spread(r.took(hook)))
	}
}

func spread(v []time.Duration) string {
	return fmt.Sprintf("p50 %v p95 %v max %v (%d)", quantile(v, .5), quantile(v, .95), quantile(v, 1), len(v))
}

// released is when the bridge released a job with its group to an idle GPU.
func (r *rig) released(id string) (time.Time, bool) {
	r.t.Helper()
	log := must.Get(os.ReadFile(r.Path("log", "bridge.log")))(r.t)
	line := regexp.MustCompile(`time=(\S+) .*msg="group released".*kind=start .*jobs=(?:\S*,)?` + id + `[, ]`).FindSubmatch(log)
	if line == nil {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(line[1]))
	return at, err == nil
}

// TestFiguresOfHooks measures what the hooks cost jobs without a GPU: the time of srun without
// hooks, with hooks that are a shell which does nothing, and with ours, by turns.
func TestFiguresOfHooks(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_FIGURES"))
	if err != nil {
		t.Skip("make bench runs it")
	}
	if rounds == 1 {
		rounds = 40
	}
	nothing := func(c *slurmtest.Cluster) error {
		path := c.Path("nothing")
		c.Options.Prolog, c.Options.Epilog, c.Options.TaskProlog, c.Options.EpilogSlurmctld = path, path, path, path
		return os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755)
	}
	sites := []struct {
		name    string
		prepare func(*slurmtest.Cluster) error
		*slurmtest.Cluster
		took map[int][]time.Duration
	}{{name: "no hooks"}, {name: "hooks that do nothing", prepare: nothing}, {name: "ours", prepare: bareHooks(t)}}
	tasks := []int{1, 4}
	for i := range sites {
		s := &sites[i]
		s.Cluster = slurmtest.New(t, slurmtest.Options{Nodes: 4, Prepare: s.prepare})
		// A job with a GPU has been here.
		must.Get(s.RunAs(t.Context(), ann, "srun", "-N4", "--gres=gpu:1", "true"))(t)
		s.took = map[int][]time.Duration{}
	}
	for range rounds {
		for _, n := range tasks {
			for _, s := range sites {
				start := time.Now()
				must.Get(s.RunAs(t.Context(), ann, "srun", fmt.Sprintf("-N%d", n), "true"))(t)
				s.took[n] = append(s.took[n], time.Since(start))
				time.Sleep(200 * time.Millisecond) // its epilog is no part of the next one
			}
		}
	}
	for _, n := range tasks {
		for _, s := range sites {
			t.Logf("srun -N%d true, %d times, %s: p50 %v p90 %v", n, rounds, s.name, quantile(s.took[n], .5), quantile(s.took[n], .9))
		}
	}
}

// timed submits a job that writes down when it started and ended.
func (r *rig) timed(user string, sleep float64, args ...string) string {
	r.t.Helper()
	out := r.Path("out")
	script := fmt.Sprintf("date +%%s.%%N > %s/$SLURM_JOB_ID.start\nsleep %g\ndate +%%s.%%N > %s/$SLURM_JOB_ID.end\n", out, sleep, out)
	id := must.Get(r.Submit(r.t.Context(), user, script, args...))(r.t)
	return id
}

// wait waits for all jobs and returns, of those that ran together (starts within
// half a second, at least size of them), how far apart they started, and the idle
// time from each batch's last end to the next one's first start.
func (r *rig) wait(ids []string, size int) (skews, gaps []time.Duration) {
	r.t.Helper()
	type span struct{ start, end time.Time }
	var spans []span
	for _, id := range ids {
		if !slurmtest.Wait(r.t.Context(), 4*time.Minute, func() bool { return !r.mark(id, ".end").IsZero() }) {
			r.t.Fatalf("job %s has not ended", id)
		}
		spans = append(spans, span{r.mark(id, ".start"), r.mark(id, ".end")})
	}
	slices.SortFunc(spans, func(a, b span) int { return a.start.Compare(b.start) })
	for i := 0; i < len(spans); {
		k := i
		end := spans[i].end
		for k < len(spans) && spans[k].start.Sub(spans[i].start) < 500*time.Millisecond {
			if spans[k].end.After(end) {
				end = spans[k].end
			}
			k++
		}
		if k-i >= size {
			skews = append(skews, spans[k-1].start.Sub(spans[i].start))
		}
		if k < len(spans) {
			gaps = append(gaps, spans[k].start.Sub(end))
		}
		i = k
	}
	return skews, gaps
}

// mark is when a timed job wrote that it started or ended, zero = it hasn't.
func (r *rig) mark(id, what string) time.Time {
	text, err := os.ReadFile(r.Path("out", id+what))
	if err != nil {
		return time.Time{}
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, int64(f*1e9))
}

func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))].Round(100 * time.Microsecond)
}
