package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/profimport"
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

// ljSacct is a run of ljScript by ann, 1,000 s with 2 GiB.
const ljSacct = "JobID|JobName|User|State|Start|End|NodeList|NTasks|AllocTRES|TRESUsageInMax|TRESUsageInAve\n" +
	"7|my lj|ann|COMPLETED|1000|2000|n1||gres/gpu=1||\n" +
	"7.batch|batch||COMPLETED|1000|2000|n1|1|gres/gpu=1|gres/gpumem=2G,gres/gpuutil=90|gres/gpumem=2G,gres/gpuutil=60\n" +
	"8|cpu|ann|COMPLETED|1000|2000|n1||cpu=1||\n"

func TestProfilesFromAccounting(t *testing.T) {
	file := conf(t)
	sacct := written(t, "sacct.txt", ljSacct)
	out := ok(t, "profiles", "import", "-c", file, "--sacct", sacct, "--dry-run")
	if !strings.Contains(out, "my_lj") || !strings.Contains(out, "1 profiles would be imported") || !strings.Contains(out, "jobs left out: 1 without a GPU") || !strings.Contains(out, "--scripts") {
		t.Error(out)
	}
	if out := ok(t, "profiles", "list", "-c", file); strings.Contains(out, "my_lj") {
		t.Errorf("a dry run changed something: %s", out)
	}
	scripts := filepath.Dir(written(t, "7.sh", "Batch Script for 7\n--------\n"+fmt.Sprintf(ljScript, 1000)))
	out = ok(t, "profiles", "import", "-c", file, "--sacct", sacct, "--scripts", scripts)
	if !strings.Contains(out, "1 profiles imported") || strings.Contains(out, "--scripts") {
		t.Error(out)
	}
	known, wanted := appid.Identify("", fmt.Appendf(nil, ljScript, 1000), ""), appid.Identify("", fmt.Appendf(nil, ljScript, 2000), "")
	out = ok(t, "profiles", "show", known.Key, "-c", file)
	for _, says := range []string{known.Key + ", ann: imported from sacct (jobs: 1); not known: SM use, PCIe", "alone 1000.0 s ± 0.0", "sizes: -n 1000", "mean 60, peak 60 %", "peak 2048 MiB"} {
		if !strings.Contains(out, says) {
			t.Errorf("it doesn't say %q: %s", says, out)
		}
	}
	// Another size is a relative, as soon as a job with it was seen.
	cfg := must.Get(config.Load(file, nil))(t)
	st := must.Get(cli.OpenStore(t.Context(), cfg, slog.New(slog.DiscardHandler)))(t)
	must.OK(t, st.SetFamily(t.Context(), "ann", wanted))
	st.Close()
	out = ok(t, "profiles", "show", wanted.Key, "--user", "ann", "-c", file)
	if !strings.Contains(out, "never seen; alone between 2000 and 2828 s, with at most 18022 MiB at any time") || !strings.Contains(out, "relative of "+known.Key) {
		t.Error(out)
	}
	var v cli.Profile
	if err := json.Unmarshal([]byte(ok(t, "profiles", "show", wanted.Key, "--user", "ann", "--json", "-c", file)), &v); err != nil || !v.Relative || v.Profile.DurationSD <= 0 || v.Sizes[0].Value != 2000 {
		t.Errorf("%+v %v", v, err)
	}
	if status, _, errOut := call("profiles", "show", wanted.Key, "--user", "bob", "-c", file); status != 1 || !strings.Contains(errOut, "profiles list") {
		t.Errorf("bob's: %d %s", status, errOut)
	}
	if out := ok(t, "profiles", "forget", known.Key, "-c", file, "--json"); !strings.Contains(out, `"forgotten": 1`) {
		t.Error(out)
	}
}

func TestProfilesFromPrometheus(t *testing.T) {
	answer := `{"status":"success","data":{"resultType":"matrix","result":[
{"metric":{"__name__":"DCGM_FI_DEV_FB_USED","hpc_job":"7","UUID":"GPU-1"},"values":[[1000,"100"],[1500,"3000"]]},
{"metric":{"__name__":"DCGM_FI_DEV_GPU_UTIL","hpc_job":"7","UUID":"GPU-1"},"values":[[1000,"20"],[1500,"40"]]}]}}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
	defer srv.Close()
	sacct := written(t, "sacct.txt", ljSacct)
	for _, from := range []string{srv.URL, written(t, "answer.json", answer)} {
		file := conf(t)
		var out imported
		must.OK(t, json.Unmarshal([]byte(ok(t, "profiles", "import", "-c", file, "--sacct", sacct, "--prometheus", from, "--json")), &out))
		if len(out.Profiles) != 1 || out.Profiles[0].User != "ann" || out.LeftOut["without a GPU"] != 1 {
			t.Fatalf("%+v", out)
		}
		if p := out.Profiles[0].Profile; p.Peak().MemMiB != 3000 || p.Mean().GPU < 0.299 || p.Mean().GPU > 0.301 || len(p.Series) != 2 {
			t.Errorf("%+v", p)
		}
	}
	answer = `{"status":"error","errorType":"execution","error":"too many samples"}`
	if status, _, errOut := call("profiles", "import", "-c", conf(t), "--sacct", sacct, "--prometheus", srv.URL); status != 1 || !strings.Contains(errOut, "too many samples") {
		t.Errorf("%d %s", status, errOut)
	}
}

func TestProfilesImportRefuses(t *testing.T) {
	sacct := written(t, "sacct.txt", ljSacct)
	bad := written(t, "bad.csv", "app,duration_s,gpu_util,mem_mib\nx,1,5,7\ny,1,500,7\n")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{nil, 2, "nothing to import"},
		{[]string{bad}, 1, "bad.csv:3: gpu_util: "},
		{[]string{"--prometheus", "http://x"}, 2, "--prometheus needs --sacct"},
		{[]string{"--sacct", bad}, 1, "bad.csv:1: JobIDRaw or JobID"},
		{[]string{"--sacct", sacct, "--prometheus", bad}, 1, "bad.csv:1: "},
		{[]string{"--sacct", sacct, "--prometheus", "http://"}, 2, "no address"},
		{[]string{"--sacct", sacct, "--prometheus", sacct, "--job-label", `x="`}, 2, "--job-label"},
		{[]string{"--sacct", sacct, "--time-zone", "Mars"}, 2, "--time-zone"},
		{[]string{"--sacct", sacct, "--start", "soon"}, 2, "--start"},
		{[]string{"--sacct", sacct, "--scripts", "/nowhere"}, 1, "--scripts"},
		{[]string{"--sacct", "/nowhere"}, 1, "no such file"},
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
	if out := ok(t, "profiles", "import", "-c", conf(t), "--sacct", sacct, "--start", "2026-01-01"); !strings.Contains(out, "0 profiles imported") {
		t.Error(out)
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
	if json.Unmarshal(text, &a) != nil || json.Unmarshal([]byte(ok(t, "profiles", "export", "-", "-c", file)), &b) != nil || len(a) != 11 || len(b) != 11 {
		t.Errorf("%d and %d profiles", len(a), len(b))
	}
}

// A job whose script was never seen is taken for its relative, until it has a profile
// of its own; one that is too far from all of them stays unknown, and so runs alone.
func TestRecogniserKnowsRelatives(t *testing.T) {
	cfg := must.Get(config.Load(conf(t), nil))(t)
	st := must.Get(cli.OpenStore(t.Context(), cfg, slog.New(slog.DiscardHandler)))(t)
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
		JobID: 1, Node: "n1", User: "ann", Start: time.Unix(1000, 0), End: time.Unix(1100, 0), GPUs: []gpuprof.GPU{{UUID: "GPU-1"}},
		PeriodS: 100, Series: []rlcore.Use{{GPU: 0.5, MemMiB: 500}},
	}
	if learned, err := st.Learn(t.Context(), first.Key, run); err != nil || !learned {
		t.Fatal(learned, err)
	}
	twice := see("2", "ann", 2000, job.Terms{})
	if twice.Profile == nil || twice.Key == first.Key || twice.Profile.Peak().MemMiB < 1000 || !strings.Contains(twice.Profile.Source, "relative of "+first.Key) {
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
	if learned, err := st.Learn(t.Context(), twice.Key, run); err != nil || !learned {
		t.Fatal(learned, err)
	}
	if app := see("6", "ann", 2000, job.Terms{}); app.Profile == nil || app.Profile.Peak().MemMiB != 700 {
		t.Errorf("what was measured doesn't count: %+v", app.Profile)
	}
}

// A chart is as wide as it is told, and no peak is lost between two columns.
func TestDrawProfile(t *testing.T) {
	p := &rlcore.Profile{App: "x", DurationS: 1000, PeriodS: 1, Series: make([]rlcore.Use, 1000)}
	p.Series[777] = rlcore.Use{GPU: 1, MemMiB: 1000}
	for _, columns := range []int{0, 40, 80, 500} {
		var b bytes.Buffer
		drawProfile(&b, p, columns)
		if strings.Count(b.String(), "█") != 2*chartRows {
			t.Errorf("%d columns:\n%s", columns, b.String())
		}
		for _, l := range strings.Split(b.String(), "\n") {
			if n := utf8.RuneCountInString(l); n > max(columns, labels+leastCols+1, 40) {
				t.Errorf("%d columns: a line of %d: %s", columns, n, l)
			}
		}
	}
	if got := chart([]float64{0, 1, 4, 8, 9}, 8, 1); got[0] != " ▁▄██" {
		t.Errorf("%q", got)
	}
	must.Equal(t, strings.Join(chart([]float64{0, 4, 8}, 8, 2), "|"), "  █| ██")
}

func TestOlderRunsAreNotAskedFor(t *testing.T) {
	jobs, err := profimport.ReadSacct(strings.NewReader("JobID|JobName|User|State|Start|End|AllocTRES\n"+
		"1|a|u|COMPLETED|1|2|gres/gpu=1\n2|a|u|COMPLETED|3|4|gres/gpu=1\n3|b|u|COMPLETED|1|2|gres/gpu=1\n4|a|u|FAILED|9|10|gres/gpu=1\n"), "f", time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	in := importing{runs: 1}
	left, skipped := in.newest(jobs, func(*profimport.Job) appid.App { return appid.App{} })
	if len(left) != 3 || skipped.Total() != 1 {
		t.Errorf("%+v %v", left, skipped)
	}
	for _, j := range left {
		if j.ID == "1" {
			t.Error("the older run is left")
		}
	}
}
