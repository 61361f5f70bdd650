package e2e

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// weights are what a partition charges: a share of a GPU twice its part of it. Slurm rounds what a job is charged
// down to a whole number.
const weights, wholeGPU = "GRES/gpu=50,GRES/mps=1", 50

// accounted is the GPU time of each job by accounting, s: whole GPUs, and shares as parts of one; and what all are
// charged, in seconds of a whole GPU.
func accounted(t *testing.T, s *world, ids []string) (seconds map[string]float64, charged float64) {
	t.Helper()
	var out string
	s.until("accounting knows of all ends", func() bool {
		out = s.says("sacct", "-a", "-X", "-n", "-P", "-j", strings.Join(ids, ","), "-o", "JobID,State,ElapsedRaw,AllocTRES")
		return strings.Count(out, "|COMPLETED|") == len(ids)
	})
	seconds = map[string]float64{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		elapsed, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			t.Fatal(line)
		}
		for item := range strings.SplitSeq(f[3], ",") {
			what, n, _ := strings.Cut(item, "=")
			v, _ := strconv.ParseFloat(n, 64)
			switch what {
			case "gres/gpu":
				seconds[f[0]] += v * elapsed
			case "gres/mps":
				seconds[f[0]] += v / 100 * elapsed
			case "billing":
				charged += v / wholeGPU * elapsed
			}
		}
	}
	return seconds, charged
}

// What `usage` says that jobs held is what accounting says, within 1 %: of whole GPUs and of shares, with the nodes'
// records and without.
func TestUsageAgreesWithAccounting(t *testing.T) {
	slurmtest.OfOneRelease(t)
	if testing.Short() {
		t.Skip("it takes two minutes")
	}
	slurmtest.RequireAccounting(t)
	t.Parallel()
	s := newWorld(t, cluster.Setup{
		Scale: 2, NodeGPUs: []int{1, 1, 2}, Settings: []string{"sharers_only: []", "mixed_partitions: share"}, Adjust: func(o *slurmtest.Options) {
			o.Accounting = true
			o.Extra = append(o.Extra, "AccountingStorageTRES=gres/gpu,gres/mps")
		},
	})
	s.scontrol("update", "PartitionName="+slurmtest.Partition, "TRESBillingWeights="+weights)
	var ids []string
	submit := func(script string, args ...string) { ids = append(ids, s.submit(script, append(args, "--time=5")...)) }
	submit("sleep 100", "--gres=gpu:2")
	submit(s.gpusim("hoomd --duration-scale 2 >/dev/null"), "--gres=gpu:shared", "--comment=app=hoomd") // for a minute
	for range 3 {
		submit("sleep 90", "--gres=gpu:shared", "--comment=app=gromacs")
	}
	s.reach("COMPLETED", ids...)
	want, charged := accounted(t, s, ids)
	var r usage.Report
	ask := func(by string, more ...string) usage.Report {
		t.Helper()
		r = usage.Report{}
		s.command(&r, append([]string{"usage", "--since", "1h", "--by", by}, more...)...)
		return r
	}
	// Accounting counts whole seconds, and on a busy machine a node sees start and end of a job a second after slurmctld:
	// here that is up to a second of each of the five GPUs, or parts of one, that the jobs had.
	near := func(got, want float64) bool { return math.Abs(got-want) <= 0.01*want+5 }
	known := func() bool { return near(3600*r.Total.ComputedOf, 3600*r.Total.Held) }
	total := 0.0
	for _, seconds := range want {
		total += seconds
	}
	// The last records may be on their way.
	slurmtest.Wait(t.Context(), 60*time.Second,
		func() bool { r = ask("job"); return known() && near(3600*r.Total.Held, total) })
	for _, l := range r.Lines {
		t.Logf("job %s: accounting %.0f GPU-seconds, usage %.1f, computed %s", l.Name, want[l.Name], 3600*l.Held,
			number(l.Computed))
	}
	if len(r.Lines) != len(ids) || !near(3600*r.Total.Held, total) {
		t.Errorf("%d jobs held %.1f GPU-seconds, accounting says %.1f of %d", len(r.Lines), 3600*r.Total.Held, total,
			len(ids))
	}
	for _, by := range usage.Ways() {
		if got := ask(string(by)).Total.Held * 3600; !near(got, total) {
			t.Errorf("by %s %.1f GPU-seconds were held, accounting says %.1f", by, got, total)
		}
	}
	if r.Total.Computed == nil || !(*r.Total.Computed > 0) || !known() {
		t.Errorf("computed: %s h, known of %.3f h of %.3f", number(r.Total.Computed), r.Total.ComputedOf, r.Total.Held)
	}
	if got := ask("account", "--charged").Total.Charged; got == nil || !near(3600**got, charged) {
		t.Errorf("charged are %s hours of a GPU, by accounting %.1f s", number(got), charged)
	}
	// The daemon tells users their own, by their MUNGE credential; nobody else has any.
	mine := func(user string) (string, error) { return s.ask(user, "usage", "--json", "--me", "--since", "1h") }
	slurmtest.Wait(t.Context(), 90*time.Second, func() bool { // it looks once a minute
		out, err := mine(cluster.Owner)
		r = usage.Report{}
		return err == nil && json.Unmarshal([]byte(out), &r) == nil && near(3600*r.Total.Held, total)
	})
	if len(r.Lines) != 1 || r.Lines[0].Name != cluster.Owner || !near(3600*r.Total.Held, total) {
		t.Errorf("usage --me: %+v", r)
	}
	if out, err := mine(bob); err == nil || !strings.Contains(out+err.Error(), "nothing is known of GPU jobs of "+bob) {
		t.Errorf("usage --me of somebody without jobs: %v %s", err, out)
	}
}

func number(v *float64) string {
	if v == nil {
		return "not known"
	}
	return strconv.FormatFloat(*v, 'g', 4, 64)
}
