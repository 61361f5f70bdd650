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
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
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

const ljScript = "#!/bin/sh\n#SBATCH -n 1\nsrun ./lj -n %d\n"

// A script with another size than one that has run alone is its relative, for its user alone.
func TestProfilesShowARelative(t *testing.T) {
	file := conf(t)
	lj := func(n int) appid.App { return appid.Identify(&appid.Evidence{Script: fmt.Appendf(nil, ljScript, n)}) }
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
	must.Equal(t, must.Get(st.Learn(t.Context(), st.DB(), known.Key, run, 0, false))(t), true)
	st.Close()
	out := ok(t, "profiles", "show", known.Key, "--user", "ann", "-c", file)
	for _, says := range []string{
		known.Key + ", ann: ", "alone 1000.0 s ± 0.0 over 1 runs", "sizes: -n 1000",
		"│ 60   │ 60   │ %", "│ 2048 │ 2048 │ MiB",
	} {
		must.Contain(t, out, says)
	}
	out = ok(t, "profiles", "show", wanted.Key, "--user", "ann", "-c", file)
	must.Contain(t, out, "never seen; alone between ")
	must.Contain(t, out, "relative of "+known.Key)
	var v shown
	if err := json.Unmarshal([]byte(ok(t, "profiles", "show", wanted.Key, "--user", "ann", "--json", "-c", file)),
		&v); err != nil || !v.Relative || v.Profile.DurationSD <= 0 || v.Sizes[0].Value != 2000 {
		t.Errorf("%+v %v", v, err)
	}
	if status, _, errOut := call("profiles", "show", wanted.Key, "--user", "bob", "-c", file); status != 1 ||
		!strings.Contains(errOut, "profiles list") {
		t.Errorf("bob's: %d %s", status, errOut)
	}
	must.Contain(t, ok(t, "profiles", "forget", known.Key, "-c", file, "--json"), `"forgotten": 1`)
}

// A job whose script was never seen is taken for its relative, until it has a profile of its own, and its owner's name for
// it counts above all. A script is read once: a later look has none.
func TestRelativesStandInForUnknownSizes(t *testing.T) {
	st := must.Get(store.Open(t.Context(), t.TempDir()+"/db"))(t)
	defer st.Close()
	script := func(n int) []byte { return fmt.Appendf(nil, ljScript, n) }
	see := func(ref, user, name string, script []byte) (key string, known *rlcore.Profile) {
		t.Helper()
		key = must.Get(st.Identify(t.Context(), &job.Job{Ref: ref, User: user}, job.Terms{App: name}, script))(t)
		return key, must.Get(st.Profile(t.Context(), user, key, ""))(t)
	}
	learn := func(app string, id int64, mib float64) {
		t.Helper()
		must.Get(st.Learn(t.Context(), st.DB(), app, &gpuprof.Record{
			JobID: id, Node: "n1", User: "ann", Start: time.Unix(1000, 0), End: time.Unix(1100, 0),
			GPUs: []gpuprof.GPU{{UUID: "GPU-1"}}, PeriodS: 100, Series: []rlcore.Use{{GPU: 0.5, MemMiB: mib}},
		}, 0, false))(t)
	}
	first, known := see("1", "ann", "", script(1000))
	if first == "" || known != nil {
		t.Fatalf("%q: %+v", first, known)
	}
	learn(first, 1, 500)
	twice, known := see("2", "ann", "", script(2000))
	if twice == first || known == nil || !strings.Contains(known.Source, "relative of "+first) {
		t.Errorf("%q: %+v", twice, known)
	}
	if later, known := see("2", "ann", "", nil); later != twice || known == nil {
		t.Errorf("%q: %+v", later, known)
	}
	for user, name := range map[string]string{"bob": "", "ann": "mine"} {
		if key, known := see("4", user, name, script(2000)); name != "" && key != name || known != nil {
			t.Errorf("%s's %q: %q, %+v", user, name, key, known)
		}
	}
	learn(twice, 2, 700)
	if _, known := see("6", "ann", "", script(2000)); known == nil || known.Peak().MemMiB != 700 {
		t.Errorf("what was measured doesn't count: %+v", known)
	}
}

// No peak is lost between two columns.
func TestDrawProfile(t *testing.T) {
	p := &rlcore.Profile{App: "x", DurationS: 1000, PeriodS: 1, Series: make([]rlcore.Use, 1000)}
	p.Series[777] = rlcore.Use{GPU: 1, MemMiB: 1000}
	var b bytes.Buffer
	(&shared{cli.Env{Out: &b}}).drawProfile(p)
	must.Equal(t, strings.Count(b.String(), "█"), 2)
	must.Contain(t, b.String(), "0 TO 1000 S")
	must.Equal(t, string([]rune{bar(0, 8), bar(1, 8), bar(4, 8), bar(8, 8), bar(9, 8), bar(1, 0)}), " ▁▄██ ")
}

// What identify calls an application is what the daemon makes of the same job.
func TestIdentifySaysTheDaemonsKey(t *testing.T) {
	dir := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	script := filepath.Join(dir, "run.sh")
	must.OK(t, os.WriteFile(script, []byte("exec gpusim run alexnet --mem-mib $(cat mem)\n"), 0o600))
	st := must.Get(store.Open(t.Context(), filepath.Join(dir, "db")))(t)
	defer st.Close()
	note := job.Note{Args: job.NoteArgs([]string{"128", "x_007.csv", "N=5"})}
	daemons := must.Get(st.Identify(t.Context(), &job.Job{Ref: "1", User: "ann", WorkDir: dir, Note: note},
		job.Terms{}, must.Get(os.ReadFile(script))(t)))(t)
	var got struct{ Jobs []appid.App }
	must.OK(t, json.Unmarshal([]byte(ok(t, "profiles", "identify", "--json", "-c", conf(t), script, "--args",
		"128 x_007.csv", "--export", "ALL,N=5")), &got))
	must.Equal(t, got.Jobs[0].Key, daemons)
}
