package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// memMiB is what a job of the flow needs: three fit on a Titan Xp, a fourth doesn't.
const memMiB = 3600

// slowest ends a run that doesn't come to its end.
const slowest = 15 * time.Minute

// ran is what came of the jobs on one cluster.
type ran struct {
	takenS    float64
	starts    []run
	releasedS map[string]float64 // by job, since the first could start
	wrong     int
}

// run is where a job ran, and from when to when, s since the first could start.
type run struct {
	job, node, gpu string
	atS, endS      float64
}

// play runs the jobs on a cluster of their own.
func play(ctx context.Context, o *options, s shape, lengths []int, bridged bool) (r *ran, err error) {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	usual := ""
	setup := cluster.Setup{
		Scale: 1, Build: o.build, Bare: true, Scheduler: &usual, Sharing: o.sharing, CPUs: max(4, 4*s.gpus),
		NodeGPUs: slices.Repeat([]int{s.gpus}, s.nodes), Lease: 3 * time.Minute,
	}
	gres := "gpu:1"
	if bridged {
		setup.Policy, setup.Lua, gres = "greedy", o.lua, "gpu:shared"
		setup.Settings = []string{"leave_room: no", fmt.Sprintf("max_group: %d", together)}
		for d := o.shortest; d <= o.shortest+o.longer; d++ {
			setup.Profiles = append(setup.Profiles, &rlcore.Profile{
				App: app(d), DurationS: float64(d), PeriodS: float64(d), Series: []rlcore.Use{{GPU: 0.1, Core: 0.1, MemMiB: memMiB}},
			})
		}
	}
	st, err := cluster.Start(ctx, setup)
	if err != nil {
		return nil, err
	}
	defer func() { err = st.CloseAfter(ctx, err) }()
	dir, err := st.Reports()
	if err != nil {
		return nil, err
	}
	if err := st.Hold(ctx); err != nil {
		return nil, err
	}
	for _, d := range lengths {
		script := fmt.Sprintf("#!/bin/sh\nat=$(date +%%s.%%N)\nsleep %d\necho $SLURM_JOB_ID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $at $(date +%%s.%%N) >%s/$SLURM_JOB_ID\n", d, dir)
		if _, err := st.Submit(ctx, cluster.Owner, script, "--gres="+gres, "--comment=app="+app(d), "--time=3"); err != nil {
			return nil, err
		}
	}
	var began time.Time
	if err := st.Free(ctx, func() error { began = time.Now(); return nil }); err != nil {
		return nil, err
	}
	if err := st.Left(ctx); err != nil {
		return nil, err
	}
	r = &ran{takenS: time.Since(began).Seconds()}
	if bridged {
		if r.wrong, err = misplaced(st); err != nil {
			return nil, err
		}
		if r.releasedS, err = released(st.Path("log", "slurmbridge.log"), began); err != nil {
			return nil, err
		}
	}
	r.starts, err = runs(dir, began)
	if err == nil && len(r.starts) < len(lengths) {
		err = fmt.Errorf("%d of %d jobs have run", len(r.starts), len(lengths))
	}
	return r, err
}

func app(d int) string { return fmt.Sprint("sleep", d) }

// misplaced counts the members that the bridge saw on another GPU than planned.
func misplaced(st *cluster.Stack) (int, error) {
	text, err := st.Text("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, `slurmbridge_group_members_total{outcome="misplaced"} `); ok {
			n, err := strconv.ParseFloat(rest, 64)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("no figure of misplaced members among the metrics")
}

// runs reads what the jobs wrote as they ended.
func runs(dir string, began time.Time) ([]run, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	var out []run
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var x run
		if n, err := fmt.Sscan(string(body), &x.job, &x.node, &x.gpu, &x.atS, &x.endS); n != 5 || err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, body, err)
		}
		zero := float64(began.UnixNano()) / 1e9
		x.atS, x.endS = x.atS-zero, x.endS-zero
		out = append(out, x)
	}
	return out, nil
}

var releaseLine = regexp.MustCompile(`^time=(\S+) .*msg="group released" .*jobs=(\S+)`)

// released reads in the bridge's log when each job was released, s after began.
func released(log string, began time.Time) (map[string]float64, error) {
	body, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		m := releaseLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", log, err)
		}
		for id := range strings.SplitSeq(m[2], ",") {
			out[id] = at.Sub(began).Seconds()
		}
	}
	return out, nil
}

// wakeS is the median time from the end of a job to the release of the next one that runs on its GPU, s; 0 = none was
// released after another had ended.
func (r *ran) wakeS() float64 {
	var gaps []float64
	for _, x := range r.starts {
		at, last := r.releasedS[x.job], 0.0
		for _, y := range r.starts {
			if y.node == x.node && y.gpu == x.gpu && y.endS <= at {
				last = max(last, y.endS)
			}
		}
		if last > 0 {
			gaps = append(gaps, at-last)
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	return stat.Quantile(0.5, stat.Empirical, gaps, nil)
}

// fillS is how long it took until each GPU of a node had so many jobs, s; the mean of the nodes. A GPU
// that never had counts with the whole time.
func (r *ran) fillS(s shape, jobs int) float64 {
	on := map[[2]string][]float64{}
	for _, x := range r.starts {
		key := [2]string{x.node, x.gpu}
		on[key] = append(on[key], x.atS)
	}
	last, seen := map[string]float64{}, map[string]int{}
	for key, at := range on {
		slices.Sort(at)
		t := r.takenS
		if len(at) >= jobs {
			t = at[jobs-1]
		}
		last[key[0]] = max(last[key[0]], t)
		seen[key[0]]++
	}
	sum := r.takenS * float64(s.nodes-len(last))
	for node, t := range last {
		if seen[node] < s.gpus {
			t = r.takenS
		}
		sum += t
	}
	return sum / float64(s.nodes)
}
