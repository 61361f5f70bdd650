package lab

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/experiment"
)

// traceFiles are seven jobs of four applications that share well, submitted at once
// and one after the other, in every format.
var traceFiles = map[string]string{
	"solo.csv": "app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\n" +
		"light,60,20,5,500,,,5\nmid,60,45,10,2000,,,50\nheavy,120,98,40,7000,,,200\nshort,,30,,1000,,,\n",
	"once.csv": "job,submit_s,app,duration_s,user\n" +
		"1,50,light,,a\n2,50,mid,,a\n3,50,heavy,,b\n4,50,light,100,a\n5,50,mid,30,c\n6,50,heavy,60,a\n7,50,short,45,\n",
	"over.csv": "job,submit_s,app,duration_s,user\n" +
		"1,0,light,,a\n2,10,mid,,a\n3,20,heavy,,b\n4,30,light,100,a\n5,40,mid,30,c\n6,50,heavy,60,a\n7,60,short,45,\n",
	"pairs.csv": "victim,aggressor,slowdown\nlight,mid,1.10\nmid,light,1.25\nlight,light,1.5\nheavy,light,1.1\n",
	"sacct.txt": "JobID|JobName|User|Submit|ElapsedRaw|State|AllocTRES\n" +
		"11|light|ann|2026-01-05T10:00:00|70|COMPLETED|cpu=4,gres/gpu=1\n" +
		"11.batch|batch||2026-01-05T10:00:00|70|COMPLETED|cpu=4\n" +
		"12|mid|bob|2026-01-05T10:01:00|80|COMPLETED|cpu=4,gres/gpu=1\n" +
		"13|mid|bob|2026-01-05T10:01:30|80|COMPLETED|cpu=4,gres/gpu=2\n" +
		"14|make|bob|2026-01-05T10:02:00|80|COMPLETED|cpu=4\n" +
		"15|light|bob|2026-01-05T10:02:00|0|RUNNING|cpu=4,gres/gpu=1\n" +
		"16|two\nlines|bob|2026-01-05T10:02:00|90|COMPLETED|cpu=4,gres/gpu=1\n" +
		"17|light|bob|2026-01-05T10:02:00|90|COMPLETED|cpu=4,gres/gpu:1g.5gb=1,gres/gpu=1\n" +
		"18|strange|bob|2026-01-05T10:02:00|90|COMPLETED|cpu=4,gres/gpu=1\n",
}

// replayed reads the JSON of a replay and checks what holds of every one.
func replayed(t *testing.T, file string) map[string]*experiment.Line {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	var r experiment.ReplayReport
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for name, x := range r.Policies {
		cost := x.MakespanS
		if r.Objective == "turnaround" {
			cost = x.TurnaroundS
		}
		if x.PossibleShare > 1+1e-9 || x.MeanSlowdown < 1-1e-9 || !(x.MakespanS > 0 && x.TurnaroundS > 0 && x.GPUUtil > 0) ||
			x.OOM == 0 && cost < r.LowerBoundS-1e-6 {
			t.Errorf("%s can't be: %+v", name, x)
		}
	}
	return r.Policies
}

func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	dir := files(t, traceFiles)
	out := filepath.Join(dir, "out.json")
	run := func(more ...string) map[string]*experiment.Line {
		t.Helper()
		for i, w := range more {
			if strings.HasSuffix(w, ".csv") || strings.HasSuffix(w, ".txt") {
				more[i] = filepath.Join(dir, w)
			}
		}
		status, _, errOut := call(append([]string{"replay", "--seeds", "1", "--json", out}, more...)...)
		if status != 0 {
			t.Fatalf("%v: status %d, %s", more, status, errOut)
		}
		return replayed(t, out)
	}
	report := func() (r experiment.ReplayReport) {
		text := must.Get(os.ReadFile(out))(t)
		must.OK(t, json.Unmarshal(text, &r))
		return r
	}
	once := []string{"--jobs", "once.csv", "--profiles", "solo.csv"}
	with := func(more ...string) []string { return append(append([]string{}, once...), more...) }

	t.Run("at once", func(t *testing.T) {
		got := run(with("--policies", "fifo,sjf,tetris,greedy,random", "--seeds", "2")...)
		if r := report(); r.Objective != "makespan" || r.Jobs != 7 || r.GPUs != 1 || r.Seeds != 2 || len(r.Skipped) > 0 {
			t.Errorf("it is %+v", r)
		}
		// 60 + 60 + 120 + 100 + 30 + 60 + 45 s, one after the other.
		if x := got["fifo"]; math.Abs(x.MakespanS-475) > 1e-6 || x.PossibleShare != 0 || x.MeanSlowdown > 1+1e-9 {
			t.Errorf("fifo: %+v", x)
		}
		if x := got["sjf"]; math.Abs(x.MakespanS-475) > 1e-6 || x.TurnaroundS >= got["fifo"].TurnaroundS {
			t.Errorf("sjf: %+v", x)
		}
		if x := got["greedy"]; x.MakespanS > 400 || x.OOM != 0 {
			t.Errorf("greedy: %+v", x)
		}
	})
	t.Run("over time", func(t *testing.T) {
		run("--jobs", "over.csv", "--profiles", "solo.csv", "--policies", "greedy,sjf")
		if r := report(); r.Objective != "turnaround" {
			t.Errorf("the share is of %s", r.Objective)
		}
		run("--jobs", "over.csv", "--profiles", "solo.csv", "--policies", "greedy", "--objective", "makespan")
		if r := report(); r.Objective != "makespan" {
			t.Errorf("the share is of %s", r.Objective)
		}
	})
	t.Run("dqn learns on the trace", func(t *testing.T) { // on which all of the few jobs meet for the first time
		if x := run(with("--policies", "dqn")...)["dqn"]; !(x.PossibleShare > 0.1) || !(x.TrainS > 0) || x.Note == "" {
			t.Errorf("dqn: %+v", x)
		}
	})
	t.Run("what the flags say of GPUs", func(t *testing.T) {
		base := run(with("--policies", "random")...)["random"]
		for _, flags := range [][]string{{"--gpus", "3"}, {"--law", "time-slice"}, {"--same-user"}, {"--mem-mib", "3000"}} {
			if x := run(with(append(flags, "--policies", "random")...)...)["random"]; x.MakespanS == base.MakespanS {
				t.Errorf("%v changes nothing", flags)
			}
		}
		if r := report(); r.Jobs != 5 || r.Skipped["more memory than a GPU has"] != 2 {
			t.Errorf("%d jobs, left out %v", r.Jobs, r.Skipped)
		}
	})
	t.Run("sacct", func(t *testing.T) {
		got := run("--jobs", "sacct.txt", "--profiles", "solo.csv", "--policies", "fifo")
		r := report()
		if r.Jobs != 3 || r.Unknown != 1 || r.Skipped["more GPUs than there are"] != 1 || r.Skipped["without a GPU"] != 1 ||
			r.Skipped["not ended"] != 1 ||
			r.Skipped["on a MIG instance"] != 1 || r.Skipped["with a line break in its name, or cut short"] != 1 {
			t.Errorf("%d jobs, left out %v", r.Jobs, r.Skipped)
		}
		// 70 s from 10:00:00, then 80 s, and 90 s.
		if x := got["fifo"]; math.Abs(x.MakespanS-240) > 1e-6 {
			t.Errorf("fifo: %+v", x)
		}
	})
	t.Run("same seed, same figures", func(t *testing.T) {
		var reports [2]string
		for i := range reports {
			run("--jobs", "over.csv", "--profiles", "solo.csv", "--policies", "random,greedy,tetris", "--seed", "5")
			text, _ := json.Marshal(timeless(object(t, out)))
			reports[i] = string(text)
		}
		if reports[0] != reports[1] {
			t.Errorf("%s\nand\n%s", reports[0], reports[1])
		}
	})
}

// What was measured is the truth; a row that stands there twice counts with its mean.
func TestReplayPairs(t *testing.T) {
	dir := files(t, map[string]string{
		"solo.csv": traceFiles["solo.csv"], "jobs.csv": "job,submit_s,app\n1,0,light\n2,0,mid\n",
		"pairs.csv": "victim,aggressor,slowdown\nlight,mid,1.05\nlight,mid,1.15\nmid,light,1.2\n",
	})
	in := func(name string) string { return filepath.Join(dir, name) }
	status, _, errOut := call("replay", "--jobs", in("jobs.csv"), "--profiles", in("solo.csv"), "--pairs", in("pairs.csv"),
		"--policies", "tetris,greedy", "--seeds", "1", "--json", in("out.json"))
	must.Equal(t, status, 0, errOut)
	for name, x := range replayed(t, in("out.json")) {
		// light ends after 66 s, having cost mid 11 s of its 60.
		if name != "fifo" && math.Abs(x.MakespanS-71) > 1e-6 {
			t.Errorf("%s: light beside mid ends after %v s", name, x.MakespanS)
		}
	}
}

func TestReplayPrints(t *testing.T) {
	dir := files(t, traceFiles)
	args := []string{
		"replay", "--jobs", filepath.Join(dir, "once.csv"), "--profiles", filepath.Join(dir, "solo.csv"),
		"--seeds", "1", "--policies", "greedy", "--mem-mib", "3000",
	}
	status, out, errOut := call(args...)
	for _, want := range []string{
		"5 jobs on 1 GPUs", "left out: 2 jobs (more memory than a GPU has)", "fifo", "greedy",
		"÷ BEST OTHER", "OF POSSIBLE", "WAITED H", "WORST LATE",
		"slowdowns up to 2.5 are allowed, and an end later than plain Slurm's by 0.1 of the time alone",
	} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, no %q in\n%s%s", status, want, out, errOut)
		}
	}
	status, out, errOut = call(append(args, "--json", "-")...)
	var r experiment.ReplayReport
	if err := json.Unmarshal([]byte(out), &r); status != 0 || err != nil || r.Policies["greedy"] == nil {
		t.Errorf("status %d, %v: %s%s", status, err, out, errOut)
	}
}

// TestReplayEnds: the table counts jobs ended by limits and deadlines where there are any, and is as narrow as ever
// elsewhere.
func TestReplayEnds(t *testing.T) {
	dir := files(t, map[string]string{
		"solo.csv":  traceFiles["solo.csv"],
		"plain.csv": traceFiles["once.csv"],
		"limit.csv": "job,submit_s,app,user,limit_s\n1,0,heavy,a,121\n2,0,heavy,b,50\n3,0,light,a,\n",
		"dead.csv":  "job,submit_s,app,user,deadline_s\n1,0,heavy,a,\n2,0,heavy,b,50\n",
	})
	for file, want := range map[string]struct{ limits, deadlines bool }{
		"plain.csv": {}, "limit.csv": {limits: true}, "dead.csv": {deadlines: true},
	} {
		status, out, errOut := call("replay", "--jobs", filepath.Join(dir, file), "--profiles",
			filepath.Join(dir, "solo.csv"), "--policies", "greedy", "--seeds", "1")
		if status != 0 || strings.Contains(out, "TIMED OUT") != want.limits ||
			strings.Contains(out, "PAST DEADLINE") != want.deadlines {
			t.Errorf("%s: status %d, %s\n%s", file, status, errOut, out)
		}
	}
}

const (
	soloHead = "app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\n"
	jobsHead = "job,submit_s,app,duration_s,user\n"
)

// What is refused is said with the flag, or with file, line and column; package trace's tests have what rows can't say,
// experiment's what options can't, and dqn's what checkpoints can't.
func TestReplayRefuses(t *testing.T) {
	dir := files(t, traceFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	must.OK(t, os.WriteFile(in("empty"), nil, 0o600))
	must.OK(t, os.WriteFile(in("ghost.csv"), []byte(jobsHead+"1,0,light,5,u\n2,0,ghost,5,u\n"), 0o600))
	trace := []string{"--jobs", in("once.csv"), "--profiles", in("solo.csv")}
	refuses(t, []string{"replay"}, []refused{
		{nil, 2, "--jobs and --profiles are needed"},
		{append(trace, "--gpus", "-1"), 2, "--gpus -1"},
		{append(trace, "--mem-mib", "NaN"), 2, "--mem-mib NaN"},
		{append(trace, "--seeds", "0"), 2, "--seeds 0"},
		{append(trace, "--window", "99"), 2, "a window of 1 to 12"},
		{append(trace, "--max-slowdown", "0.5"), 2, "--max-slowdown is 0.5, but takes 1 to 100, or 0"},
		{append(trace, "--grace", "0"), 2, "--grace is 0, but takes 0.01 to 100"},
		{append(trace, "--duration-error", "1"), 2, "--duration-error is 1, but takes a part from 0"},
		{append(trace, "--law", "gravity"), 2, `--law is "gravity"; there are mps and time-slice`},
		{append(trace, "--objective", "fame"), 2, `there is no objective "fame"; there are turnaround and makespan`},
		{append(trace, "--policies", "greedy,nobody"), 2, `--policies: there is no policy "nobody"; there are fifo, `},
		{append(trace, "--policies", "greedy", "--checkpoint", in("x")), 2, "--checkpoint is dqn's"},
		{append(trace, "--checkpoint", in("none")), 1, "none: no such file"},
		{append(trace, "--checkpoint", in("once.csv")), 1, "once.csv: unusable checkpoint: it isn't JSON"},
		{append(trace, "--json", in("none/x.json")), 1, "x.json: no such file or directory"},
		{append(trace, "--mem-mib", "100"), 1, "once.csv: can't replay: no job is left of 7 (7 more memory than a GPU has)"},
		{[]string{"--jobs", in("none.csv"), "--profiles", in("solo.csv")}, 1, "none.csv: open: no such file"},
		{append(trace, "--pairs", in("empty")), 1, "empty: the file is empty"},
		{append(trace, "--pairs", dir), 1, dir},
		{
			[]string{"--jobs", in("ghost.csv"), "--profiles", in("solo.csv")},
			1,
			in("ghost.csv") + `:3: app: unknown application "ghost"; there are `,
		},
	})
}

// TestReplayExtremes: values at the edges of what a file may say give figures.
func TestReplayExtremes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	dir := files(t, map[string]string{
		"solo.csv": soloHead + "idle,0.01,0,0,0,0,0,0.000001\nfull,1000000,100,100,12196,100,10000000,1000000000\nunknown,,0,,,,,\nmid,60,50,,100,,,\n",
		"once.csv": jobsHead +
			"1,0,idle,,\n2,0,full,,\n3,0,unknown,1,\n4,0,mid,0.01,\n5,0,idle,1000000,\n6,0,mid,1000000,\n7,0,unknown,0.01,\n",
		"over.csv": jobsHead +
			"1,0,idle,,\n2,0,full,,\n3,0.000001,unknown,1,\n4,1,mid,0.01,\n5,5000000,idle,1000000,\n6,5000000,mid,1000000,\n",
		"one.csv": jobsHead + "1,99999999999,idle,,\n",
	})
	out := filepath.Join(dir, "out.json")
	for _, jobs := range []string{"once.csv", "over.csv", "one.csv"} {
		for _, gpus := range []string{"1", "3"} {
			policies := "sjf,random,greedy"
			if jobs != "once.csv" || gpus == "1" {
				policies += ",tetris" // whose tuning takes seconds for many jobs at once on several GPUs
			}
			status, _, errOut := call("replay", "--jobs", filepath.Join(dir, jobs), "--profiles", filepath.Join(dir, "solo.csv"),
				"--gpus", gpus, "--policies", policies, "--seeds", "1", "--json", out)
			if status != 0 {
				t.Fatalf("%s on %s: %s", jobs, gpus, errOut)
			}
			text := must.Get(os.ReadFile(out))(t)
			for _, bad := range []string{"NaN", "Inf", "null"} {
				if strings.Contains(string(text), bad) {
					t.Errorf("%s on %s: %s in\n%s", jobs, gpus, bad, text)
				}
			}
		}
	}
}
