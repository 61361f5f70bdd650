package compare

import (
	"bytes"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	body := must.Get(os.ReadFile(file))(t)
	return body
}

// Wrong settings end it before anything starts, in a sentence that names what there
// is.
func TestSettings(t *testing.T) {
	for args, words := range map[string][]string{
		"--workloads gpu_huge":     {"--workloads", "gpu_huge", "gpu_heavy, gpu_light", "open, "},
		"--load 0":                 {"--load", "0.1 to 10"},
		"--variants whole,best":    {"--variants", "best", "shard_half"},
		"--jobs 0":                 {"--jobs", "1 to 1000"},
		"--scale 1000":             {"--scale", "60"},
		"--scale NaN":              {"--scale"},
		"--parallel 0":             {"--parallel"},
		"--sacle 3":                {"sacle"},
		"random":                   {"random"},
		"--quick --variants fifo,": {"fifo"},
	} {
		c := Command(&cluster.Setup{})
		c.SetArgs(strings.Fields(args))
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		err := c.ExecuteContext(t.Context())
		if err == nil {
			t.Errorf("%s: no error", args)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q doesn't name %q", args, err, w)
			}
		}
	}
}

// Where results can't go is said before anything starts.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a", "compare.json")
	if err := folders(file, filepath.Join(dir, "b", "c")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	must.OK(t, os.WriteFile(file, nil, 0o600))
	for _, c := range [][2]string{{file + "/x", ""}, {dir, ""}, {"-", file}} {
		if err := folders(c[0], c[1]); err == nil || !strings.HasPrefix(err.Error(), "--") {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := folders("-", ""); err != nil {
		t.Error(err)
	}
}

func TestCells(t *testing.T) {
	o := options{base: &cluster.Setup{}, jobs: 5, seed: 7, scale: 3, load: 1.2}
	if err := o.check([]string{"DQN", " whole"}); err == nil {
		t.Error("no clusters at a time, and no error")
	}
	o.parallel = 2
	must.OK(t, o.check([]string{"DQN", " whole"}))
	cells, err := o.cells()
	if err != nil || len(cells) != 8*2 {
		t.Fatalf("%d cells, %v", len(cells), err)
	}
	if cells[0].variant.name != "whole" || cells[1].variant.name != "dqn" || cells[0].setup.Policy != "" || cells[1].setup.Policy != "dqn" {
		t.Errorf("%+v", cells[:2])
	}
	if strings.Join(cells[0].apps, " ") != strings.Join(cells[1].apps, " ") || len(cells[0].apps) != 5 {
		t.Errorf("%v and %v: not the same jobs", cells[0].apps, cells[1].apps)
	}
	for i, c := range longestFirst(cells) {
		if (c.variant.name == "whole") != (i < 8) || (c.at != nil) != (i%8 < 3) {
			t.Errorf("%s is number %d to start", c.name(), i)
		}
	}
}

// sample is a report with everything in it: a failure, a gap.
func sample() (*options, report) {
	o := &options{workloads: []string{"gpu_light", "random"}, variants: variants(), scale: 12}
	two := func(end float64, ok bool) []run {
		return []run{{app: "gromacs", endS: 80, finished: true}, {app: "alexnet", startS: 5, endS: end, finished: ok}}
	}
	return o, report{"random": {
		"whole":    {MakespanS: 200, IdleS: 20, BusyMakespanS: 180, MeanTurnaroundS: 100, runs: two(200, true)},
		"mps_half": {MakespanS: 90, BusyMakespanS: 90, JobsFailed: 1, OOM: 1, RerunMakespanS: 160, runs: two(5, false)},
		"greedy":   {MakespanS: 123, BusyMakespanS: 123, runs: two(123, true)},
		"dqn": {
			MakespanS: 120, IdleS: 6, BusyMakespanS: 114, runs: two(120, true),
			againstWhole: &againstWhole{TurnaroundRatio: 0.777, Lateness: cluster.Lateness{Later: 5, Late: 4, WorstS: 88}},
		},
	}}
}

func TestTable(t *testing.T) {
	o, r := sample()
	var out bytes.Buffer
	r.show(&out, o)
	text := out.String()
	for _, w := range []string{
		"0.777 │     5 │    4 │    88 │", "by more than 1 s by the clock (12 GPU s)", "random, objective makespan",
		"not measured", "a pause took 0.83 s", "0.600", "0.450", "160", "count 12-fold", "0 to 10 %",
		"random: dqn is the shortest of those under which no job failed, greedy 2.5 % longer. mps_half was over earlier: 1 job failed.",
	} {
		if !strings.Contains(text, w) {
			t.Errorf("%q is missing in\n%s", w, text)
		}
	}
	if strings.Contains(text, "gpu_light") || strings.Contains(text, "NaN") {
		t.Error(text)
	}
}

func TestPictures(t *testing.T) {
	o, r := sample()
	dir := t.TempDir()
	n, err := r.draw(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"makespans", "turnarounds", "slowdowns", "timeline-random"} {
		img, err := png.Decode(bytes.NewReader(read(t, filepath.Join(dir, name+".png"))))
		if err != nil || img.Bounds().Dx() < 500 {
			t.Errorf("%s: %v", name, err)
		}
		if svg := string(read(t, filepath.Join(dir, name+".svg"))); !strings.Contains(svg, "dqn") {
			t.Errorf("%s.svg doesn't name dqn", name)
		}
	}
	if n != 4 {
		t.Errorf("%d pictures", n)
	}
}

func TestBoard(t *testing.T) {
	a := &cell{workload: "random", variant: variant{name: "dqn"}, apps: make([]string, 4)}
	b := &cell{workload: "random", variant: variant{name: "whole"}, apps: make([]string, 4)}
	c := &cell{workload: "open-1", variant: variant{name: "whole"}, figures: &figures{MeanTurnaroundS: 123}}
	now := time.Unix(0, 0)
	var out bytes.Buffer
	bd := newBoard(&cluster.Line{Out: &out, Quiet: 30 * time.Second, Now: func() time.Time { return now }}, []*cell{a, b})
	bd.line.Keep("")
	out.Reset()
	bd.at(a, 1, 2, nil)
	if out.Len() != 0 {
		t.Errorf("at once: %q", out.String())
	}
	now = now.Add(30 * time.Second)
	bd.at(a, 2, 2, &gpusim.Snapshot{Figures: gpusim.Figures{GPU: 0.5}})
	if got := out.String(); !strings.Contains(got, "30 s") || !strings.Contains(got, "2/8 jobs ended, 2 running on 1 cluster, 0/2 runs over (random, dqn: GPU  50 %") {
		t.Errorf("%q", got)
	}
	out.Reset()
	a.figures = &figures{MakespanS: 321, JobsFailed: 3}
	bd.over(a)
	b.err = errors.New("broke\n--- log\nlong")
	bd.over(b)
	bd.over(c)
	if got := out.String(); !strings.Contains(got, "makespan   321 s, 3 jobs failed") || !strings.Contains(got, "turnaround   123 s\n") || !strings.Contains(got, "failed: broke\n") || strings.Contains(got, "long") {
		t.Errorf("%q", got)
	}
}

// Every variant once, on real daemons.
func TestVariants(t *testing.T) {
	o := testOptions(t)
	o.parallel, o.limit = 6, 2*time.Minute
	o.variants = variants()
	must.OK(t, o.leaveAdopted(t.Context(), false))
	var cells []*cell
	for _, v := range o.variants {
		cells = append(cells, o.cell("pair", v, []string{"gromacs", "gromacs"}, nil))
		if v.name == "whole" || v.name == "dqn" {
			c := o.cell("open-1", v, []string{"gromacs", "gromacs"}, []float64{0, 40})
			c.setup.Settings = []string{"objective: turnaround"}
			cells = append(cells, c)
		}
	}
	compare(t.Context(), o, cells, newBoard(quietLine(), cells))
	for _, c := range cells {
		if c.err != nil {
			t.Errorf("%s: %v", c.name(), c.err)
			continue
		}
		f := c.figures
		if f.JobsCompleted != 2 || f.OOM != 0 || f.MakespanS < 83 {
			t.Errorf("%s: %+v", c.name(), f)
		}
		// Plain Slurm runs one job after the other, variants that share both at a time. Tetris hands out one job at a
		// time and may leave the second waiting. A job that comes in the middle of a run of two seconds may come too late.
		overlap := f.runs[1].startS < f.runs[0].endS && f.runs[0].startS < f.runs[1].endS
		switch whole := c.variant.name == "whole"; {
		case whole && overlap, !whole && !overlap && c.at == nil && c.variant.name != "tetris":
			t.Errorf("%s: both at a time: %t: %+v", c.name(), overlap, f.runs)
		}
		if c.at != nil {
			if second := f.runs[1]; second.submitS < 40 || second.startS < second.submitS {
				t.Errorf("%s: %+v; the second job was to come at 40", c.name(), f.runs)
			}
		}
	}
}
