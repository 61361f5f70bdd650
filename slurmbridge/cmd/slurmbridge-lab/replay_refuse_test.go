package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	soloHead = "app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\n"
	jobsHead = "job,submit_s,app,duration_s,user\n"
	pairHead = "victim,aggressor,slowdown\n"
)

// TestReplayRefusesRows: what a file can't say, with the file, the line and the
// column. good rows stand before each bad one, so line 1 is the header.
func TestReplayRefusesRows(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ solo, jobs, pairs, want string }{
		{soloHead + "a,60,20,5,500,,,5\na,60,20,,,,,\n", "", "", `solo.csv:3: app: "a" stands there twice`},
		{soloHead + "a,60,,5,500,,,5\n", "", "", "solo.csv:2: gpu_util: the value is missing"},
		{soloHead + "a,0,20,5,500,,,5\n", "", "", "solo.csv:2: duration_s: out of range: 0 is not from"},
		{soloHead + "a,-60,20,5,500,,,5\n", "", "", "solo.csv:2: duration_s: out of range"},
		{soloHead + "a,60,NaN,5,500,,,5\n", "", "", "solo.csv:2: gpu_util: out of range"},
		{soloHead + "a,60,101,5,500,,,5\n", "", "", "solo.csv:2: gpu_util: out of range: 101 is not from 0 to 100"},
		{soloHead + "a,60,20,5,-1,,,5\n", "", "", "solo.csv:2: mem_mib: out of range"},
		{soloHead + "a,60,20,5,Inf,,,5\n", "", "", "solo.csv:2: mem_mib: out of range"},
		{soloHead + "a,60,20,5,500,,,0\n", "", "", "solo.csv:2: step_ms: out of range"},
		{soloHead + "a,60\n", "", "", "solo.csv:2: the row doesn't have the header's 8 columns"},
		{soloHead, "", "", "solo.csv: there is no row in it"},
		{"app\na\n", "", "", "solo.csv:1: gpu_util: the header lacks this column"},
		{"", jobsHead, "", "jobs.csv: there is no row in it"},
		{"", "job,app\n1,a\n", "", "jobs.csv:1: submit_s: the header lacks this column"},
		{"", jobsHead + "1,0,a,5,u\n2,,a,5,u\n", "", "jobs.csv:3: submit_s: the value is missing"},
		{"", jobsHead + "1,0,a,5,u\n,0,a,5,u\n", "", "jobs.csv:3: job: the value is missing"},
		{"", jobsHead + "1,0,a,5,u\n1,0,a,5,u\n", "", `jobs.csv:3: job: "1" stands there twice`},
		{"", jobsHead + "1,0,a,5,u\n2,0,ghost,5,u\n", "", `jobs.csv:3: app: unknown application "ghost"; there are a, b`},
		{"", jobsHead + "1,0,a,0,u\n", "", "jobs.csv:2: duration_s: out of range"},
		{"", jobsHead + "1,-5,a,5,u\n", "", "jobs.csv:2: submit_s: out of range"},
		{"", jobsHead + "1,nan,a,5,u\n", "", "jobs.csv:2: submit_s: out of range"},
		{"", jobsHead + "1,1e400,a,5,u\n", "", "jobs.csv:2: submit_s: out of range"},
		{"", jobsHead + "1,soon,a,5,u\n", "", `jobs.csv:2: submit_s: "soon" is not a number`},
		{"", "\x00\x01\x02", "", "jobs.csv:1: neither CSV"},
		{"", "1 0 5 60 1 -1 -1 1 -1 -1 1 3 1 9 -1 -1 -1 -1\n", "", `jobs.csv:1: executable: unknown application "swf-9"`},
		{"", "JobID|JobName|Submit|ElapsedRaw|State\n1|ghost|2026-01-05T10:00:00|70|COMPLETED\n", "", `jobs.csv:2: JobName: unknown application "ghost"`},
		{"", jobsHead + "7,0,b,,u\n", "", `jobs.csv: can't replay: job 7: neither its line nor the profile of "b" says how long it takes`},
		{"", "", pairHead, "pairs.csv: there is no row in it"},
		{"", "", pairHead + "a,b,1.1\na,ghost,1.1\n", `pairs.csv:3: aggressor: unknown application "ghost"`},
		{"", "", pairHead + "a,b,\n", "pairs.csv:2: slowdown: the value is missing"},
		{"", "", pairHead + "a,b,NaN\n", "pairs.csv:2: slowdown: out of range"},
		{"", "", pairHead + "a,b,0\n", "pairs.csv:2: slowdown: out of range"},
		{"", "", pairHead + "a,b,-1.2\n", "pairs.csv:2: slowdown: out of range"},
	} {
		or := func(text, good string) []byte {
			if text == "" {
				return []byte(good)
			}
			return []byte(text)
		}
		args := []string{"replay", "--policies", "greedy", "--seeds", "1"}
		for name, text := range map[string][]byte{
			"solo":  or(c.solo, soloHead+"a,60,20,5,500,,,5\nb,,40,,,,,\n"),
			"jobs":  or(c.jobs, jobsHead+"1,0,a,,u\n"),
			"pairs": or(c.pairs, pairHead+"a,b,1.1\nb,a,1.1\n"),
		} {
			file := filepath.Join(dir, name+".csv")
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			flag := map[string]string{"solo": "--profiles", "jobs": "--jobs", "pairs": "--pairs"}[name]
			args = append(args, flag, file)
		}
		status, out, errOut := call(args...)
		if want := filepath.Join(dir, c.want); status != 1 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("status %d, %q and %q, want %q", status, out, errOut, want)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	dir := files(t, traceFiles)
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	trace := []string{"--jobs", in("once.csv"), "--profiles", in("solo.csv")}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, 2, "--jobs and --profiles are needed"},
		{trace[:2], 2, "--jobs and --profiles are needed"},
		{append(trace, "--gpus", "-1"), 2, "--gpus -1"},
		{append(trace, "--gpus", "0"), 2, "--gpus 0"},
		{append(trace, "--mem-mib", "NaN"), 2, "--mem-mib NaN"},
		{append(trace, "--mem-mib", "0"), 2, "--mem-mib 0"},
		{append(trace, "--mem-mib", "+Inf"), 2, "--mem-mib +Inf"},
		{append(trace, "--seeds", "0"), 2, "--seeds 0"},
		{append(trace, "--window", "0"), 2, "--window 0"},
		{append(trace, "--window", "99"), 2, "a window of 1 to 12"},
		{append(trace, "--max-slowdown", "0.5"), 2, "--max-slowdown is 0.5, but takes 1 to 100, or 0"},
		{append(trace, "--grace", "0"), 2, "--grace is 0, but takes 0.01 to 100"},
		{append(trace, "--duration-error", "1"), 2, "--duration-error is 1, but takes a part from 0"},
		{append(trace, "--duration-error", "NaN"), 2, "--duration-error is NaN"},
		{append(trace, "--law", "gravity"), 2, `--law is "gravity"; there are mps and time-slice`},
		{append(trace, "--objective", "fame"), 2, `there is no objective "fame"; there are turnaround and makespan`},
		{append(trace, "--policies", "greedy,nobody"), 2, `--policies: there is no policy "nobody"; there are fifo, `},
		{append(trace, "--policies", "greedy", "--checkpoint", in("x")), 2, "--checkpoint is dqn's"},
		{append(trace, "--checkpoint", in("none")), 1, "none: no such file"},
		{append(trace, "--checkpoint", in("empty")), 1, "empty: unusable checkpoint: it is empty"},
		{append(trace, "--checkpoint", in("once.csv")), 1, "once.csv: unusable checkpoint: it isn't JSON"},
		{append(trace, "--json", in("none/x.json")), 1, "x.json: no such file or directory"},
		{append(trace, "--mem-mib", "100"), 1, "once.csv: can't replay: no job is left of 7 (7 more memory than a GPU has)"},
		{[]string{"--jobs", in("none.csv"), "--profiles", in("solo.csv")}, 1, "none.csv: open: no such file"},
		{[]string{"--jobs", in("empty"), "--profiles", in("solo.csv")}, 1, "empty: the file is empty"},
		{[]string{"--jobs", in("once.csv"), "--profiles", in("empty")}, 1, "empty: the file is empty"},
		{append(trace, "--pairs", in("empty")), 1, "empty: the file is empty"},
		{append(trace, "--pairs", dir), 1, dir},
	} {
		status, out, errOut := call(append([]string{"replay"}, c.args...)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%v: status %d, %q and %q; want %d, %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
}

// TestReplayExtremes: values at the edges of what a file may say give figures.
func TestReplayExtremes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	dir := files(t, map[string]string{
		"solo.csv": soloHead + "idle,0.01,0,0,0,0,0,0.000001\nfull,1000000,100,100,12196,100,10000000,1000000000\nunknown,,0,,,,,\nmid,60,50,,100,,,\n",
		"once.csv": jobsHead + "1,0,idle,,\n2,0,full,,\n3,0,unknown,1,\n4,0,mid,0.01,\n5,0,idle,1000000,\n6,0,mid,1000000,\n7,0,unknown,0.01,\n",
		"over.csv": jobsHead + "1,0,idle,,\n2,0,full,,\n3,0.000001,unknown,1,\n4,1,mid,0.01,\n5,5000000,idle,1000000,\n6,5000000,mid,1000000,\n",
		"one.csv":  jobsHead + "1,99999999999,idle,,\n",
	})
	out := filepath.Join(dir, "out.json")
	for _, jobs := range []string{"once.csv", "over.csv", "one.csv"} {
		for _, gpus := range []string{"1", "3"} {
			status, _, errOut := call("replay", "--jobs", filepath.Join(dir, jobs), "--profiles", filepath.Join(dir, "solo.csv"),
				"--gpus", gpus, "--policies", "sjf,tetris,random,greedy", "--seeds", "1", "--json", out)
			if status != 0 {
				t.Fatalf("%s on %s: %s", jobs, gpus, errOut)
			}
			text, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			for _, bad := range []string{"NaN", "Inf", "null"} {
				if strings.Contains(string(text), bad) {
					t.Errorf("%s on %s: %s in\n%s", jobs, gpus, bad, text)
				}
			}
		}
	}
}
