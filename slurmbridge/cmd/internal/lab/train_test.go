package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// TestTrain: what train writes decides in replay.
func TestTrain(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	dir := files(t, traceFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	train := func(more ...string) string {
		t.Helper()
		status, out, errOut := call(append([]string{"train"}, more...)...)
		if status != 0 || errOut != "" {
			t.Fatalf("train %v: status %d, %s", more, status, errOut)
		}
		return out
	}
	same := func(a, b string) bool {
		one := must.Get(os.ReadFile(in(a)))(t)
		two := must.Get(os.ReadFile(in(b)))(t)
		return bytes.Equal(one, two)
	}

	out := train("--workload", "random", "--rounds", "1", "--seed", "7", "--out", in("one.json"))
	if !strings.Contains(out, "trained on random, seed 7") || !strings.Contains(out, "of plain Slurm's") {
		t.Errorf("it says %q", out)
	}
	if out := train("--workload", "random", "--rounds", "1", "--objective", "makespan", "--out",
		in("span.json")); !strings.Contains(out, "of one job after the other") {
		t.Errorf("it says %q", out)
	}
	if cp, err := dqn.Load(in("span.json")); err != nil || cp.Objective != policy.Makespan {
		t.Errorf("%+v, %v", cp, err)
	}
	// The trace's seven jobs are learned in a quarter of the time.
	trace := func(more ...string) string {
		t.Helper()
		return train(append([]string{"--jobs", in("over.csv"), "--profiles", in("solo.csv")}, more...)...)
	}
	trace("--rounds", "1", "--seed", "7", "--out", in("one.json"))
	trace("--rounds", "1", "--seed", "7", "--out", in("again.json"))
	if !same("one.json", "again.json") {
		t.Error("the same seed gave another network")
	}
	trace("--rounds", "1", "--seed", "8", "--out", in("other.json"))
	if same("one.json", "other.json") {
		t.Error("another seed gave the same network")
	}

	// By another law; what it prints then is the curve.
	status, out, errOut := call("train", "--jobs", in("over.csv"), "--profiles", in("solo.csv"), "--law", "time-slice",
		"--gpus", "2", "--rounds", "2", "--out", in("site.json"), "--json")
	var curve []dqn.RoundStats
	if err := json.Unmarshal([]byte(out), &curve); status != 0 || err != nil || len(curve) != 2 || !(curve[1].Check > 0) {
		t.Errorf("status %d, %v: %s%s", status, err, out, errOut)
	}

	for _, name := range []string{"site.json"} {
		status, _, errOut := call("replay", "--jobs", in("once.csv"), "--profiles", in("solo.csv"), "--policies", "dqn",
			"--seeds", "1",
			"--checkpoint", in(name), "--json", in("out.json"))
		if status != 0 {
			t.Fatalf("%s: status %d, %s", name, status, errOut)
		}
		if dqn := replayed(t, in("out.json"))["dqn"]; dqn.PossibleShare <= 0 || dqn.TrainS != 0 {
			t.Errorf("%s: dqn as trained before is %+v", name, dqn)
		}
	}
}

// TestTrainInterrupted: what was learned is in the file.
func TestTrainInterrupted(t *testing.T) {
	dir := files(t, traceFiles)
	file, trace := filepath.Join(dir, "dqn.json"), []string{
		"train", "--jobs", filepath.Join(dir, "over.csv"),
		"--profiles", filepath.Join(dir, "solo.csv"),
	}
	for _, words := range [][]string{nil, {"--json"}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out, errOut bytes.Buffer
		root := newRoot(&out, &errOut)
		root.SetArgs(slices.Concat(trace, []string{"--rounds", "3", "--out", file}, words))
		must.OK(t, root.ExecuteContext(ctx))
		if want := "Interrupted after round 0."; !strings.Contains(errOut.String(), want) {
			t.Errorf("it says %q, not %q", errOut.String(), want)
		}
		if words != nil && strings.TrimSpace(out.String()) != "[]" {
			t.Errorf("the curve is %q", out.String())
		}
	}
	if _, err := dqn.Load(file); err != nil {
		t.Error(err)
	}
}

func TestTrainRefuses(t *testing.T) {
	dir := files(t, traceFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	out := []string{"--out", in("x.json")}
	trace := []string{"--jobs", in("once.csv"), "--profiles", in("solo.csv")}
	refuses(t, []string{"train"}, []refused{
		{nil, 2, "--out is needed"},
		{
			append(out, "--workload", "heavy"), 2,
			`--workload: there is no workload "heavy"; there are arrivals, general, gpu_heavy, `,
		},
		{append(out, "--rounds", "0"), 2, "at least one round"},
		{append(out, "--window", "-1"), 2, "a window of 1 to 12"},
		{append(out, "--hidden", "100000"), 2, "up to 1024 units"},
		{append(out, "--gpus", "-1"), 2, "--gpus -1"},
		{append(out, "--law", "none"), 2, `--law is "none"`},
		{append(out, "--workload", "random", "--records"), 2, "one of --workload, --jobs with --profiles, and --records"},
		{
			append(append(out, "--workload", "random"), trace...), 2,
			"one of --workload, --jobs with --profiles, and --records",
		},
		{append(out, "--jobs", in("once.csv")), 2, "--jobs and --profiles are needed"},
		{append(append(out, trace...), "--mem-mib", "100"), 1, "no job is left of 7 (7 more memory than a GPU has)"},
		{[]string{"--out", dir}, 1, dir + ": is a directory"},
		{[]string{"--out", os.DevNull}, 2, os.DevNull + " is not a regular file"},
		{[]string{"--out", in("none/x.json")}, 1, "x.json: no such file or directory"},
	})
	if _, err := os.Stat(in("x.json")); err == nil {
		t.Error("a refused training wrote a file")
	}
}
