package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// quickly are an experiment's words that keep it short.
func quickly(more ...string) []string {
	return append([]string{"experiment", "--quick", "--workloads", "random", "--history", "1"}, more...)
}

// object reads a JSON file. JSON has no NaN, so a file that can be read holds none.
func object(t *testing.T, file string) map[string]any {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// timeless drops wall times, however deep.
func timeless(v any) any {
	if m, ok := v.(map[string]any); ok {
		delete(m, "train_s")
		delete(m, "decision_us")
		for k := range m {
			m[k] = timeless(m[k])
		}
	}
	return v
}

// TestExperiment: the promised form of the JSON, figures that can be true,
// a table, and the same from the same seed.
func TestExperiment(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	// Who is named twice changes nothing.
	args := quickly("--policies", "sjf,greedy, greedy", "--seeds", "2")
	status, out, errOut := call(append(args, "--json", in("one.json"))...)
	if status != 0 {
		t.Fatalf("status %d: %s", status, errOut)
	}
	for _, word := range []string{"random", "sjf", "greedy", "lower bound", "lost runs", "geometric mean"} {
		if !strings.Contains(out, word) {
			t.Errorf("no %q in\n%s", word, out)
		}
	}
	report := object(t, in("one.json"))
	workloads := report["guarded"].(map[string]any)["lines"].(map[string]any)
	lines := workloads["random"].(map[string]any)["0"].(map[string]any)
	if len(workloads) != 1 || !slices.Equal(slices.Sorted(maps.Keys(lines)),
		[]string{"fifo", "greedy", "sjf"}) {
		t.Fatalf("workloads %v", workloads)
	}
	for name := range lines {
		line := lines[name].(map[string]any)
		for _, key := range []string{"makespan_s", "gpu_util", "train_s", "worst_slowdown"} {
			if v, ok := line[key].(float64); !ok || v < 0 {
				t.Errorf("%s: %s is %v", name, key, line[key])
			}
		}
		if vs, alone := line["makespan_vs_fifo"].(float64), name == "fifo" || name == "sjf"; alone && math.Abs(vs-1) > 1e-9 ||
			!alone && vs >= 0.9 {
			t.Errorf("%s: makespan ÷ fifo's is %v", name, vs)
		}
	}

	if status, out, errOut := call(append(args, "--json", in("two.json"))...); status != 0 || out == "" {
		t.Fatalf("status %d: %s", status, errOut)
	}
	one, _ := json.Marshal(timeless(report))
	two, _ := json.Marshal(timeless(object(t, in("two.json"))))
	if !bytes.Equal(one, two) {
		t.Errorf("the same seed gave\n%s\nand\n%s", one, two)
	}
}

func TestExperimentRefuses(t *testing.T) {
	dir := t.TempDir()
	refuses(t, []string{"experiment"}, []refused{
		{[]string{"--workloads", "random,heavy"}, 2, `--workloads: there is no workload "heavy"; there are gpu_heavy, `},
		{[]string{"--policies", "sjf,nobody"}, 2, `--policies: there is no policy "nobody"; there are fifo, `},
		{[]string{"--seeds", "0"}, 2, "--seeds 0"},
		{[]string{"--window", "13"}, 2, "a window of 1 to 12"},
		{[]string{"--max-slowdown", "0.5"}, 2, "--max-slowdown is 0.5, but takes 1 to 100, or 0"},
		{[]string{"--grace", "0"}, 2, "--grace is 0, but takes 0.01 to 100"},
		{[]string{"--json", filepath.Join(dir, "none", "x.json")}, 1, "x.json: no such file or directory"},
		{[]string{"--json", dir}, 1, dir + ": is a directory"},
	})
}

// A device or a pipe is written to, and stays what it is.
func TestWriteJSON(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	must.OK(t, writable(pipe)) // nobody reads it yet
	read := make(chan string)
	go func() {
		text, err := os.ReadFile(pipe)
		read <- fmt.Sprint(string(text), err)
	}()
	s := &shared{Env: &cli.Env{Out: &bytes.Buffer{}}}
	must.OK(t, s.writeJSON(pipe, 7))
	must.Equal(t, <-read, "7\n<nil>", "the pipe's reader")
	if !isSpecial(pipe) {
		t.Error("the pipe is none any more")
	}
	if err := s.writeJSON(pipe, math.NaN()); err == nil {
		t.Error("NaN was written")
	}
}

// --worlds prints each world and load, under the guard and bare, and writes both.
func TestExperimentWorlds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "worlds.json")
	args := []string{
		"experiment", "--worlds", "--quick", "--seeds", "1", "--workloads", "alnair", "--loads", "1.2",
		"--policies", "srpt,dqn",
	}
	status, out, errOut := call(append(args, "--json", file)...)
	for _, word := range []string{
		"alnair", "window 12", "fifo", "srpt", "dqn", "÷ BEST OTHER", "1.2", "bare",
		"slowdowns up to 2.5 are allowed", "95 %", "WORST LATE",
	} {
		if status != 0 || !strings.Contains(out, word) {
			t.Errorf("status %d, no %q in\n%s%s", status, word, out, errOut)
		}
	}
	report := object(t, file)
	for _, part := range []string{"guarded", "bare"} {
		lines := report[part].(map[string]any)["lines"].(map[string]any)["alnair"].(map[string]any)["1.2"].(map[string]any)
		if len(lines) < 3 || lines["srpt"].(map[string]any)["turnaround_vs_fifo"].(float64) >= 1 {
			t.Errorf("%s: %v", part, lines)
		}
	}
	for _, bad := range [][]string{
		{"experiment", "--loads", "1"},
		{"experiment", "--gpus", "3"},
		{"experiment", "--worlds", "--workloads", "random"},
		{"experiment", "--worlds", "--loads", "0"},
		{"experiment", "--worlds", "--gpus", "-1"},
		{"experiment", "--worlds", "--policies", "nothing"},
	} {
		if status, _, errOut := call(bad...); status != 2 || errOut == "" {
			t.Errorf("%v: status %d, %q", bad, status, errOut)
		}
	}
}
