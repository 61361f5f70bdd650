package store

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
)

func opened(t *testing.T, path string) *Store {
	t.Helper()
	s := must.Get(Open(context.Background(), path))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

func record(job int64, user string, seconds float64, neighbours ...int64) *gpuprof.Record {
	r := &gpuprof.Record{
		JobID: job, Node: "n1", User: user, Start: time.Unix(1000, 0), End: time.Unix(1000, int64(seconds*1e9)),
		GPUs: []gpuprof.GPU{{UUID: "GPU-1"}}, PeriodS: seconds, Series: []rlcore.Use{{GPU: 0.4, MemMiB: 2000}},
	}
	for _, n := range neighbours {
		r.Neighbours = append(r.Neighbours, gpuprof.Neighbour{JobID: n})
	}
	return r
}

func TestRecordsBecomeProfiles(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "s.db")
	s := opened(t, path)
	must.Is(t, must.Err(s.Lookup(ctx, "ann", "lmp", "")), ErrNotFound, "of nothing")
	// A shared run is kept, but teaches no solo profile.
	must.Equal(t, must.Get(s.AddRecord(ctx, record(1, "ann", 100, 2), "lmp"))(t), true)
	must.Equal(t, must.Get(s.AddRecord(ctx, record(3, "ann", 50), "lmp"))(t), true)
	for _, c := range []struct {
		r       *gpuprof.Record
		learned bool
	}{{record(1, "ann", 100, 2), false}, {record(3, "ann", 50), true}} {
		must.Equal(t, must.Get(s.Learn(ctx, s.DB(), "lmp", c.r, 0, false))(t), c.learned, "job %d: learned", c.r.JobID)
	}
	// Of a run beside others its length counts, where there is a profile of its user's.
	must.OK(t, s.Ran(ctx, s.DB(), "ann", "lmp", "", rlcore.Past{SoloS: 70, LimitS: 3600}),
		s.Ran(ctx, s.DB(), "bob", "lmp", "", rlcore.Past{SoloS: 900}))
	must.Equal(t, must.Get(s.AddRecord(ctx, record(3, "ann", 50), "lmp"))(t), false, "the same record twice is new")
	p, err := s.Lookup(ctx, "ann", "lmp", "")
	if err != nil || p.Runs != 1 || p.DurationS != 50 {
		t.Errorf("%+v %v", p, err)
	}
	must.Equal(t, p.Past, []rlcore.Past{{SoloS: 50}, {SoloS: 70, LimitS: 3600}}, "past runs")
	must.Is(t, must.Err(s.Lookup(ctx, "bob", "lmp", "")), ErrNotFound, "bob's job isn't held to be what ann's was")
	must.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o600)
}

// A run that was ended before its own end is known to use what it used, and for as long as is assumed of a job of its
// limit; a longer one of them takes its place, and the first run that comes to its own end, for good.
func TestProfilesOfRunsThatWereCutShort(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	known := func() *rlcore.Profile { return must.Get(s.Lookup(t.Context(), "ann", "server", ""))(t) }
	learn := func(id int64, s2 float64, cut bool) {
		must.Equal(t, must.Get(s.Learn(t.Context(), s.DB(), "server", record(id, "ann", s2), 1000, cut))(t), true)
	}
	learn(1, 200, true)
	p := known()
	must.Equal(t, [2]float64{p.DurationS, p.DurationSD}, [2]float64{430, 570}, "assumed of a limit of 1,000 s")
	must.Equal(t, p.At(400).MemMiB, p.Peak().MemMiB, "memory after its time")
	must.Equal(t, p.At(400).GPU, p.Mean().GPU, "use after its time")
	must.Equal(t, [2]int{p.Runs, len(p.Past)}, [2]int{}, "runs to their own end")
	learn(2, 600, true)
	must.Equal(t, known().DurationS, 600.0, "a longer one")
	learn(3, 200, true)
	must.Equal(t, known().DurationS, 600.0, "a shorter one")
	learn(4, 300, false)
	learn(5, 900, true)
	must.Equal(t, [2]float64{known().DurationS, float64(known().Runs)}, [2]float64{300, 1}, "one that has ended")
}

// A damaged row costs what it held: the other profiles, relatives and standings are read, and the run that ends next
// takes its place.
func TestADamagedRowHidesNoOther(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	learn := func(id int64, app string, size float64) {
		must.OK(t, s.SetFamily(ctx, "ann", appid.App{Key: app, Family: "md", Sizes: []appid.Size{{Name: "n", Value: size}}}))
		must.Get(s.Learn(ctx, s.DB(), app, record(id, "ann", 100*size), 0, false))(t)
		must.OK(t, s.Stand(ctx, s.DB(), rlcore.Identity{Owner: "ann", App: app}, time.Now(), &interference.Standing{}, nil))
	}
	learn(1, "md1", 1)
	learn(2, "md2", 2)
	learn(3, "md4", 4)
	must.Get(s.DB().Exec(`UPDATE profiles SET body = '{"app": "md' WHERE app = 'md4'`))(t)
	must.Get(s.DB().Exec(`UPDATE applications SET standing = '[]' WHERE app = 'md4'`))(t)
	must.Equal(t, len(must.Get(s.Listing(ctx, "", true))(t)), 2, "profiles")
	must.OK(t, s.Recall(ctx, interference.New(&contention.MPS), time.Time{}))
	must.OK(t, s.SetFamily(ctx, "ann", appid.App{Key: "md3", Family: "md", Sizes: []appid.Size{{Name: "n", Value: 3}}}))
	must.Get(s.Relative(ctx, "ann", "md3", ""))(t)
	must.Is(t, must.Err(s.Lookup(ctx, "ann", "md4", "")), ErrNotFound, "the damaged profile")
	learn(4, "md4", 4)
	must.Equal(t, must.Get(s.Lookup(ctx, "ann", "md4", ""))(t).DurationS, 400.0, "a profile in its place")
}

func TestImport(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	file := filepath.Join(t.TempDir(), "p.csv")
	must.OK(t, os.WriteFile(file,
		[]byte("app,duration_s,gpu_util,mem_mib,step_ms\nlmp,264,22,7783,\nvgg16,80,99,4316,412\n"), 0o600))
	ps := must.Get(ReadProfiles(file))(t)
	must.OK(t, s.Import(ctx, ps))
	p, err := s.Lookup(ctx, "bob", "vgg16", "")
	if err != nil || p.StepS != 0.412 || p.Peak().MemMiB != 4316 {
		t.Errorf("%+v %v", p, err)
	}
	// A user's own run counts more than what was imported.
	must.Equal(t, must.Get(s.Learn(ctx, s.DB(), "vgg16", record(3, "bob", 50), 0, false))(t), true)
	must.Equal(t, must.Get(s.Lookup(ctx, "bob", "vgg16", ""))(t).DurationS, 50)
	must.Equal(t, must.Get(s.Forget(ctx, "*", "vgg16"))(t), 2, "forgot")
	if l, err := s.Listing(ctx, "", true); err != nil || len(l) != 1 || l[0].Profile.App != "lmp" {
		t.Errorf("%+v %v", l, err)
	}
}

func TestBadFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "f: the file is empty",
		"app,duration_s\nx,1\n": "f:1: gpu_util: the header lacks",
		"app,duration_s,gpu_util,mem_mib\nx,zero,5,7\n":       "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,NaN,5,7\n":        "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,0,5,7\n":          "f:2: duration_s: ",
		"app,duration_s,gpu_util,mem_mib\nx,1,500,7\n":        "f:2: gpu_util: ",
		"app,duration_s,gpu_util,mem_mib\n,1,5,7\n":           "f:2: app: ",
		"app,duration_s,gpu_util,mem_mib\nx,1,5,7\nx,1,5,7\n": "f:3: app: ",
		"app,duration_s,gpu_util,mem_mib\n":                   "f: there is no row",
		"app,duration_s,gpu_util\nx,1,5\n":                    "f:1: mem_mib: the header lacks",
		"app,duration_s,gpu_util,mem_mib\nx,1,5,\n":           "f:2: mem_mib: ",
	} {
		must.Fail(t, must.Err(ParseCSV(strings.NewReader(text), "f")), want, text)
	}
	const good = `[{"app":"x","duration_s":1,"period_s":1,"series":[{"gpu":1}]}`
	must.Get(ParseJSON(strings.NewReader(good + "]\n")))(t)
	for _, text := range []string{
		good + "]" + good + "]", good + "," + good[1:] + "]", good + "] x",
		"", "{}", "[]", "[null]", `[{"app":"x"}]`,
		`[{"app":"x","duration_s":1,"period_s":1,"series":[{"gpu":2}]}]`, `[{"unknown":1}]`,
	} {
		must.Fail(t, must.Err(ParseJSON(strings.NewReader(text))), "", text)
	}
}

func FuzzParseCSV(f *testing.F) {
	f.Add("app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,step_ms\nx,1,2,3,4,5,6,7\n")
	f.Fuzz(func(t *testing.T, text string) {
		ps, err := ParseCSV(strings.NewReader(text), "f")
		if err != nil {
			return
		}
		for _, p := range ps {
			must.OK(t, p.Validate())
		}
	})
}

// Slurm gives numbers of jobs out again, perhaps to another user.
func TestNumbersOfJobsComeAgain(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	must.OK(t, s.SetApp(ctx, "7", "ann", "lmp"))
	for user, want := range map[string]string{"ann": "lmp", "bob": "", "": ""} {
		must.Equal(t, must.Get(s.AppOf(ctx, "7", user))(t), want, "what job 7 of %q runs", user)
	}
	must.OK(t, s.SetApp(ctx, "7", "bob", ""))
	must.Equal(t, must.Get(s.AppOf(ctx, "7", "ann"))(t), "", "what ann's job 7 of before runs")
	must.Equal(t, must.Get(s.OwnerOf(ctx, "7"))(t), "bob", "the owner of job 7")
}

// Numbers of runs are not given out again, whatever was removed: outcomes name them.
func TestTidyKeepsTheHighestNumber(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	add := func(job int64) (id int64) {
		t.Helper()
		must.Get(s.AddRecord(ctx, record(job, "ann", 10), "lmp"))(t)
		must.OK(t, s.db.QueryRowContext(ctx, `SELECT max(id) FROM record`).Scan(&id))
		return id
	}
	first, second := add(1), add(2)
	must.OK(t, (&history.History{DB: s.db}).Forget(ctx, time.Now()))
	var left int
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM record`).Scan(&left); err != nil || left != 1 {
		t.Errorf("%d runs are left, %v", left, err)
	}
	if third := add(3); third <= second || second <= first {
		t.Errorf("runs %d, %d, and after tidying %d", first, second, third)
	}
}

func script(n int) appid.App {
	return appid.Identify(&appid.Evidence{Script: fmt.Appendf(nil, "srun ./lj -n %d", n)})
}

func constant(app string, seconds, mib float64) *rlcore.Profile {
	return &rlcore.Profile{
		App: app, DurationS: seconds, PeriodS: seconds, Series: []rlcore.Use{{GPU: 0.5, MemMiB: mib}},
		Source: "imported",
	}
}

func TestRelatives(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	want := script(2000)
	must.Is(t, must.Err(s.Relative(ctx, "ann", want.Key, "")), ErrNotFound, "never seen")
	for _, user := range []string{"ann", "bob"} {
		must.OK(t, s.SetFamily(ctx, user, want))
		must.OK(t, s.SetFamily(ctx, user, script(1000)))
	}
	must.Is(t, must.Err(s.Relative(ctx, "ann", want.Key, "")), ErrNotFound, "without a profile")
	must.Equal(t, must.Get(s.Learn(ctx, s.DB(), script(1000).Key, record(1, "ann", 50), 0, false))(t), true)
	p, err := s.Relative(ctx, "ann", want.Key, "")
	if err != nil || p.App != want.Key || p.Peak().MemMiB < 2000 || p.DurationSD <= 0 ||
		!strings.Contains(p.Source, script(1000).Key) {
		t.Errorf("%+v %v", p, err)
	}
	// Nobody's runs change what another user's jobs are held to be.
	must.Is(t, must.Err(s.Relative(ctx, "bob", want.Key, "")), ErrNotFound, "bob's job isn't held to be like ann's")
	// The site's profiles are everybody's.
	must.OK(t, s.SetFamily(ctx, "", script(1000)))
	must.OK(t, s.Import(ctx, []*rlcore.Profile{constant(script(1000).Key, 60, 500)}))
	if p, err := s.Relative(ctx, "bob", want.Key, ""); err != nil || p.Peak().MemMiB < 500 {
		t.Errorf("%+v %v", p, err)
	}
	must.OK(t, s.SetFamily(ctx, "ann", script(99000)))
	must.Is(t, must.Err(s.Relative(ctx, "ann", script(99000).Key, "")), ErrNotFound, "far away")
	// What has a profile is not forgotten, the rest is.
	must.OK(t, s.SetApp(ctx, "7", "ann", "lmp"))
	must.OK(t, s.Tidy(ctx, time.Now().Add(time.Hour)))
	must.Equal(t, must.Get(s.AppOf(ctx, "7", "ann"))(t), "")
	if a, err := s.Family(ctx, "ann", script(1000).Key); err != nil || a.Family != want.Family || a.Name != "lj" ||
		len(a.Sizes) != 1 || a.Sizes[0].Value != 1000 {
		t.Errorf("%+v %v", a, err)
	}
	must.Equal(t, must.Get(s.Family(ctx, "ann", script(99000).Key))(t).Family, "")
}

func TestImportTakesAllProfilesOrNone(t *testing.T) {
	ctx := context.Background()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	must.Fail(t, s.Import(ctx, []*rlcore.Profile{constant("one", 1, 1), constant("two", -1, 1)}), "", "a bad profile")
	must.Is(t, must.Err(s.Lookup(ctx, "", "one", "")), ErrNotFound, "half an import isn't taken")
}

// on is a record of a run on a GPU model.
func on(model string, id int64, seconds float64) *gpuprof.Record {
	r := record(id, "ann", seconds)
	r.Node, r.GPUs = "with-"+model, []gpuprof.GPU{{UUID: model, Model: model, MemMiB: 16000}}
	return r
}

// keep adds a run and learns from it.
func keep(t *testing.T, s *Store, app string, r *gpuprof.Record) {
	t.Helper()
	must.Get(s.AddRecord(t.Context(), r, app))(t)
	must.Equal(t, must.Get(s.Learn(t.Context(), s.DB(), app, r, 0, false))(t), true)
}

// A run on one model says nothing of the time on another, until three applications have run on both.
func TestProfilesAreOfACard(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	keep(t, s, "lmp", on("A100", 1, 600))
	must.Is(t, must.Err(s.Lookup(ctx, "ann", "lmp", "T4")), ErrNotFound, "on a card that it never ran on")
	keep(t, s, "lmp", on("T4", 2, 3000))
	for card, want := range map[string]float64{"A100": 600, "T4": 3000, "": 600} {
		if p, err := s.Lookup(ctx, "ann", "lmp", card); err != nil || p.DurationS != want || p.DurationSD != 0 ||
			p.Runs != 1 {
			t.Errorf("on %q: %+v %v", card, p, err)
		}
	}
	for i, ratio := range []float64{4, 6.25} {
		app := fmt.Sprint("app", i)
		keep(t, s, app, on("A100", int64(10+i), 100))
		keep(t, s, app, on("T4", int64(20+i), 100*ratio))
	}
	keep(t, s, "new", on("A100", 3, 200))
	p, err := s.Lookup(ctx, "ann", "new", "T4")
	if err != nil || math.Abs(p.DurationS-1000) > 1e-6 || p.DurationSD < 100 || p.DurationSD > 400 ||
		p.Peak().MemMiB != 2000 || p.Model != "T4" || p.Runs != 0 {
		t.Errorf("the ratios are 5, 4 and 6.25: %+v %v", p, err)
	}
	// A run there replaces the estimate.
	keep(t, s, "new", on("T4", 4, 900))
	if p, err := s.Lookup(ctx, "ann", "new", "T4"); err != nil || p.DurationS != 900 || p.Runs != 1 {
		t.Errorf("%+v %v", p, err)
	}
	lost := on("T4", 5, 100) // NVML lost the GPU before its model was known
	lost.GPUs[0].Model = ""
	must.Get(s.AddRecord(ctx, lost, "lmp"))(t)
	cards, noLimits, err := s.Cards(ctx)
	if err != nil || cards[job.GPUAddr{Node: "with-T4"}] != "T4" || len(cards) != 2 || len(noLimits) != 0 {
		t.Errorf("%v, without limits %v, %v", cards, noLimits, err)
	}
	// A driver is replaced by an older one, and by a newer one again.
	for i, old := range []bool{true, false} {
		r := on("T4", int64(6+i), 100)
		r.GPUs[0].NoMemLimits = old
		must.Get(s.AddRecord(ctx, r, "lmp"))(t)
		if _, noLimits, err := s.Cards(ctx); err != nil || noLimits["with-T4"] != old || len(noLimits) > 1 {
			t.Errorf("an old driver %v: nodes without limits %v, %v", old, noLimits, err)
		}
	}
}

// One user's applications don't say how long another's take on another card, however many there are.
func TestNoUserSetsOthersTimes(t *testing.T) {
	ctx := t.Context()
	s := opened(t, filepath.Join(t.TempDir(), "s.db"))
	id := int64(0)
	both := func(user, app string, ratio float64) {
		for model, seconds := range map[string]float64{"A100": 1000, "T4": 1000 * ratio} {
			id++
			r := on(model, id, seconds)
			r.User = user
			keep(t, s, app, r)
		}
	}
	for i := range 20 {
		both("mallory", fmt.Sprint("x", i), 0.01)
	}
	id++
	keep(t, s, "lmp", on("A100", id, 600))
	must.Is(t, must.Err(s.Lookup(ctx, "ann", "lmp", "T4")), ErrNotFound, "by mallory's word")
	both("bob", "a", 5)
	both("carol", "b", 5)
	must.Near(t, must.Get(s.Lookup(ctx, "ann", "lmp", "T4"))(t).DurationS, 3000, 1e-6, "with two others' five-fold times")
	both("dave", "d", 5)
	if p, err := s.Lookup(ctx, "ann", "lmp", "T4"); err != nil || p.DurationSD > 300 {
		t.Errorf("mallory says how sure it is: %+v %v", p, err)
	}
	for _, app := range []string{"a", "b", "c"} {
		both("ann", app, 4)
	}
	must.Near(t, must.Get(s.Lookup(ctx, "ann", "lmp", "T4"))(t).DurationS, 2400, 1e-6, "with three of ann's own")
}
