package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

// ok calls a command that must succeed, and returns what it printed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	status, out, errOut := call(args...)
	if status != 0 || errOut != "" {
		t.Fatalf("%v: %d %q", args, status, errOut)
	}
	return out
}

func written(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

const ljScript = "#!/bin/sh\n#SBATCH -n 1\nsrun ./lj -n %d\n"

// A script with another size than one that has run alone is its relative, for its user alone.
func TestProfilesShowARelative(t *testing.T) {
	file := conf(t)
	lj := func(n int) appid.App { return appid.Identify(&appid.Job{Script: fmt.Appendf(nil, ljScript, n)}) }
	known, wanted := lj(1000), lj(2000)
	cfg := must.Get(config.Load(file, nil))(t)
	st := must.Get(cli.OpenStore(t.Context(), cfg))(t)
	must.OK(t, st.SetFamily(t.Context(), "ann", known))
	must.OK(t, st.SetFamily(t.Context(), "ann", wanted))
	run := &gpuprof.Record{
		JobID: 7, Node: "n1", User: "ann", Start: time.Unix(1000, 0), End: time.Unix(2000, 0),
		GPUs:    []gpuprof.GPU{{UUID: "GPU-1"}},
		PeriodS: 1000, Series: []rlcore.Use{{GPU: 0.6, MemMiB: 2048}},
	}
	if learned, err := st.Learn(t.Context(), known.Key, run, 0); err != nil || !learned {
		t.Fatal(learned, err)
	}
	st.Close()
	out := ok(t, "profiles", "show", known.Key, "--user", "ann", "-c", file)
	for _, says := range []string{
		known.Key + ", ann: ", "alone 1000.0 s ± 0.0 over 1 runs", "sizes: -n 1000",
		"│ 60   │ 60   │ %", "│ 2048 │ 2048 │ MiB",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("it doesn't say %q: %s", says, out)
		}
	}
	out = ok(t, "profiles", "show", wanted.Key, "--user", "ann", "-c", file)
	if !strings.Contains(out, "never seen; alone between ") || !strings.Contains(out, "relative of "+known.Key) {
		t.Error(out)
	}
	var v shown
	if err := json.Unmarshal([]byte(ok(t, "profiles", "show", wanted.Key, "--user", "ann", "--json", "-c", file)),
		&v); err != nil || !v.Relative || v.Profile.DurationSD <= 0 || v.Sizes[0].Value != 2000 {
		t.Errorf("%+v %v", v, err)
	}
	if status, _, errOut := call("profiles", "show", wanted.Key, "--user", "bob", "-c", file); status != 1 ||
		!strings.Contains(errOut, "profiles list") {
		t.Errorf("bob's: %d %s", status, errOut)
	}
	if out := ok(t, "profiles", "forget", known.Key, "-c", file, "--json"); !strings.Contains(out, `"forgotten": 1`) {
		t.Error(out)
	}
}

func TestProfilesImportRefuses(t *testing.T) {
	good := written(t, "good.csv", "app,duration_s,gpu_util,mem_mib\nx,1,5,7\n")
	bad := written(t, "bad.csv", "app,duration_s,gpu_util,mem_mib\nx,1,5,7\ny,1,500,7\n")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, 2, "requires at least 1 arg"},
		{[]string{good, bad}, 1, "bad.csv:3: gpu_util: "},
		{[]string{filepath.Join(t.TempDir(), "none.csv")}, 1, "no such file"},
	} {
		file := conf(t)
		status, out, errOut := call(append([]string{"profiles", "import", "-c", file}, c.args...)...)
		if status != c.status || out != "" || !strings.Contains(errOut, c.says) {
			t.Errorf("%v: %d %q %q", c.args, status, out, errOut)
		}
		if out := ok(t, "profiles", "list", "-c", file, "--json"); strings.TrimSpace(out) != "[]" {
			t.Errorf("%v: half of it was taken: %s", c.args, out)
		}
	}
}

func TestProfilesGoRound(t *testing.T) {
	file := conf(t)
	all := filepath.Join(t.TempDir(), "all.json")
	ok(t, "profiles", "export", all, "--builtin", "-c", file)
	if out := ok(t, "profiles", "import", all, "-c", file); !strings.Contains(out, "11 profiles imported") {
		t.Error(out)
	}
	if out := ok(t, "profiles", "list", "-c", file); strings.Count(out, "(all)") != 11 {
		t.Error(out)
	}
	text := must.Get(os.ReadFile(all))(t)
	var a, b []*rlcore.Profile
	if json.Unmarshal(text, &a) != nil || json.Unmarshal([]byte(ok(t, "profiles", "export", "-", "-c", file)),
		&b) != nil || len(a) != 11 || len(b) != 11 {
		t.Errorf("%d and %d profiles", len(a), len(b))
	}
}

// A job whose script was never seen is taken for its relative, until it has a profile
// of its own; one that is too far from all of them stays unknown, and so runs alone.
func TestRecogniserKnowsRelatives(t *testing.T) {
	cfg := must.Get(config.Load(conf(t), nil))(t)
	st := must.Get(cli.OpenStore(t.Context(), cfg))(t)
	defer st.Close()
	r := &recogniser{st}
	look := func(ref, user string, terms job.Terms, script []byte) (app job.App) {
		t.Helper()
		var err error
		if app.Key, err = r.Identify(t.Context(), &job.Job{Ref: ref, User: user}, terms, script); err != nil {
			t.Fatal(err)
		}
		if app.Profile, err = r.Profile(t.Context(), user, app.Key, ""); err != nil {
			t.Fatal(err)
		}
		return app
	}
	see := func(ref, user string, n int, terms job.Terms) job.App {
		t.Helper()
		return look(ref, user, terms, fmt.Appendf(nil, ljScript, n))
	}
	first := see("1", "ann", 1000, job.Terms{})
	if first.Key == "" || first.Profile != nil {
		t.Fatalf("%+v", first)
	}
	run := &gpuprof.Record{
		JobID: 1, Node: "n1", User: "ann", Start: time.Unix(1000, 0), End: time.Unix(1100, 0),
		GPUs:    []gpuprof.GPU{{UUID: "GPU-1"}},
		PeriodS: 100, Series: []rlcore.Use{{GPU: 0.5, MemMiB: 500}},
	}
	if learned, err := st.Learn(t.Context(), first.Key, run, 0); err != nil || !learned {
		t.Fatal(learned, err)
	}
	twice := see("2", "ann", 2000, job.Terms{})
	if twice.Profile == nil || twice.Key == first.Key || twice.Profile.Peak().MemMiB < 1000 ||
		!strings.Contains(twice.Profile.Source, "relative of "+first.Key) {
		t.Errorf("%+v %+v", twice, twice.Profile)
	}
	// Its script is read once; a later look has none.
	if later := look("2", "ann", job.Terms{}, nil); later.Key != twice.Key || later.Profile == nil {
		t.Errorf("%+v", later)
	}
	if app := see("3", "ann", 9000, job.Terms{}); app.Profile != nil {
		t.Errorf("nine times the size: %+v", app.Profile)
	}
	if app := see("4", "bob", 2000, job.Terms{}); app.Profile != nil {
		t.Errorf("bob's is taken for ann's: %+v", app.Profile)
	}
	if app := see("5", "ann", 2000, job.Terms{App: "mine"}); app.Key != "mine" || app.Profile != nil {
		t.Errorf("its owner's name doesn't count: %+v", app)
	}
	run.JobID, run.Series = 2, []rlcore.Use{{GPU: 0.5, MemMiB: 700}}
	if learned, err := st.Learn(t.Context(), twice.Key, run, 0); err != nil || !learned {
		t.Fatal(learned, err)
	}
	if app := see("6", "ann", 2000, job.Terms{}); app.Profile == nil || app.Profile.Peak().MemMiB != 700 {
		t.Errorf("what was measured doesn't count: %+v", app.Profile)
	}
}

// No peak is lost between two columns.
func TestDrawProfile(t *testing.T) {
	p := &rlcore.Profile{App: "x", DurationS: 1000, PeriodS: 1, Series: make([]rlcore.Use, 1000)}
	p.Series[777] = rlcore.Use{GPU: 1, MemMiB: 1000}
	var b bytes.Buffer
	(&shared{cli.Env{Out: &b}}).drawProfile(p)
	if strings.Count(b.String(), "█") != 2 || !strings.Contains(b.String(), "0 TO 1000 S") {
		t.Error(b.String())
	}
	must.Equal(t, string([]rune{bar(0, 8), bar(1, 8), bar(4, 8), bar(8, 8), bar(9, 8), bar(1, 0)}), " ▁▄██ ")
}

// identify says what the daemon would call a job's application, and how jobs are related.
func TestProfilesIdentify(t *testing.T) {
	file := conf(t, "app_names: [\"nf-train*=train\"]")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const script = "#!/bin/sh\n#SBATCH --time=10\nexec gpusim run alexnet --mem-mib $(cat mem) --seed 5\n"
	small, large := write("small/run.sh", script), write("large/run.sh", script)
	identify := func(args ...string) (out struct {
		Jobs []struct {
			Key, Program, Family, Chdir string
			Sizes                       []appid.Size
			Why                         []string
		}
		Pairs []pair
	},
	) {
		t.Helper()
		must.OK(t, json.Unmarshal([]byte(ok(t, append([]string{"profiles", "identify", "--json", "-c", file}, args...)...)),
			&out))
		return out
	}
	two := identify(small, large)
	if len(two.Pairs) != 1 || two.Pairs[0].Relation != appid.Others || !strings.Contains(two.Pairs[0].Why, "folder") {
		t.Errorf("in two folders: %+v", two.Pairs)
	}
	if one := identify(small, large, "--chdir", dir); one.Pairs[0].Relation != appid.Same ||
		one.Jobs[0].Key != one.Jobs[1].Key {
		t.Errorf("in one folder: %+v", one)
	}
	// The key is what the daemon makes of the same job.
	real := must.Get(filepath.EvalSymlinks(filepath.Dir(large)))(t)
	want := appid.Identify(&appid.Job{
		Script: []byte(script), Dir: real,
		Args: job.NoteArgs([]string{"128", "x_007.csv", "N=5"}),
	})
	got := identify(large, "--args", "128 x_007.csv", "--export", "ALL,N=5").Jobs[0]
	if got.Key != want.Key || got.Family != want.Family || got.Program != "gpusim" || got.Chdir != real ||
		len(got.Sizes) != 2 {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, named := range [][]string{{"--job-name", "nf-train_(7)"}, {"--export", "SLURMBRIDGE_APP=train"}} {
		if got := identify(append(named, small)...).Jobs[0]; got.Key != "train" {
			t.Errorf("%v: %+v", named, got)
		}
	}
	if got := identify(write("c.sh", "#!/bin/sh\n#SBATCH --comment=app=mine\n./a")).Jobs[0]; got.Key != "mine" {
		t.Errorf("by a comment: %+v", got)
	}
	text := ok(t, "profiles", "identify", "-c", file, small, write("n.sh", "./a 5"), write("m.sh", "./a 6"))
	for _, says := range []string{
		"not counted  --seed 5: other random numbers", ": relatives", "n.sh and ",
		"differ in argument 1 (5 and 6)", "may be found from there",
	} {
		if !strings.Contains(text, says) {
			t.Errorf("it doesn't say %q: %s", says, text)
		}
	}
	if status, _, _ := call("profiles", "identify", "-c", file, filepath.Join(dir, "none.sh")); status == 0 {
		t.Error("a script that isn't there is identified")
	}
}
