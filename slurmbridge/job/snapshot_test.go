package job

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// What Slurm takes for a job of so many CPUs. All but the last two were seen on 22.05.8.
func TestAllocates(t *testing.T) {
	for _, c := range []struct {
		what       string
		node       Node
		cpus, want int
	}{
		{"single CPUs", Node{CPUs: 16}, 3, 3},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 1, 2},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 3, 4},
		{"two threads a core", Node{CPUs: 16, CPUsPerAlloc: 2}, 4, 4},
		{"a socket", Node{CPUs: 16, CPUsPerAlloc: 8}, 1, 8},
		{"three tasks, a core each", Node{CPUs: 16, CPUsPerAlloc: 2, TaskPerCore: true}, 3, 6},
		{"no more than there is", Node{CPUs: 16, CPUsPerAlloc: 2, TaskPerCore: true}, 12, 16},
		{"too large", Node{CPUs: 15, CPUsPerAlloc: 2}, 17, 18},
	} {
		must.Equal(t, c.node.Allocates(c.cpus), c.want, "%s: %d CPUs take", c.what, c.cpus)
	}
}

// A node never takes fewer CPUs than a job asks for, nor makes one that fits too large.
func TestAllocatesEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Node{
			CPUs: rapid.IntRange(0, 64).Draw(t, "CPUs"), CPUsPerAlloc: rapid.IntRange(0, 8).Draw(t, "per"),
			TaskPerCore: rapid.Bool().Draw(t, "tasks"),
		}
		cpus := rapid.IntRange(0, 80).Draw(t, "asks")
		if got := n.Allocates(cpus); got < cpus || cpus <= n.CPUs && got > n.CPUs {
			t.Errorf("%d", got)
		}
	})
}

func TestRanks(t *testing.T) {
	r := Ranks{Partitions: map[string]PartitionRank{
		"urgent": {Tier: 10}, "gpu": {Tier: 5, Preemptible: true}, "other": {Tier: 5, Preemptible: true},
		"scavenge": {Tier: 1, Preemptible: true}, "kept": {Tier: 1},
	}}
	of := func(partition string) *Job { return &Job{Partition: partition, QOS: "q-" + partition} }
	for _, c := range []struct {
		a, b     string
		alike    bool
		preempts bool // a may preempt b
	}{
		{"gpu", "other", true, false},
		{"gpu", "scavenge", false, true},
		{"scavenge", "gpu", false, false},
		{"urgent", "kept", false, false},
		{"scavenge,gpu", "scavenge", false, true},
		{"gpu,other", "gpu", true, false},
		{"urgent", "nowhere", false, false},
	} {
		must.Equal(t, r.Of(of(c.a)) == r.Of(of(c.b)), c.alike, "%s and %s are alike", c.a, c.b)
		must.Equal(t, r.Preempts(of(c.a), of(c.b)), c.preempts, "%s may preempt %s", c.a, c.b)
	}
	none, qos := Ranks{}, Ranks{ByQOS: true}
	if none.Of(of("gpu")) != none.Of(of("urgent")) || none.Preempts(of("urgent"), of("gpu")) ||
		qos.Of(of("gpu")) == qos.Of(of("urgent")) {
		t.Error("without partitions' tiers")
	}
	qos.QOS = map[string][]string{"high": {"low", "filler"}, "urgent": {"filler", "low"}, "low": nil, "filler": nil, "normal": nil}
	for _, c := range []struct {
		a, b     string
		alike    bool
		preempts bool // a may preempt b
	}{
		{"high", "low", false, true},
		{"low", "high", false, false},
		{"high", "normal", false, false},
		{"low", "normal", false, false},
		{"low", "filler", true, false},
		{"high", "urgent", true, false},
		{"nowhere", "normal", true, false},
	} {
		a, b := &Job{QOS: c.a}, &Job{QOS: c.b}
		must.Equal(t, qos.Of(a) == qos.Of(b), c.alike, "QOS %s and %s are alike", c.a, c.b)
		must.Equal(t, qos.Preempts(a, b), c.preempts, "QOS %s may preempt %s", c.a, c.b)
	}
}

func TestExplanationKeepsItsRefusalsAsSentences(t *testing.T) {
	const stored = `{"at":"0001-01-01T00:00:00Z","ref":"1","known":false,"status":"",` +
		`"refused":["with 2 on n1 gpu 0: GPU memory would not suffice at some moment","alone or joining on n1 gpu 3: a job asks not to share, or can't run under MPS"],` +
		`"latest_delay_s":0,"free_in_s":0}`
	made := Explanation{Ref: "1", Vetoes: []Veto{
		{With: []string{"2"}, Node: "n1", Reason: rlcore.VetoMemory}, {Node: "n1", GPU: 3, Reason: rlcore.VetoNoShare},
	}}
	var read Explanation
	must.OK(t, json.Unmarshal([]byte(stored), &read))
	for name, e := range map[string]*Explanation{"as the planner makes it": &made, "read from a stored one": &read} {
		got := must.Get(json.Marshal(e))(t)
		must.Equal(t, string(got), stored, name)
	}
}

func TestWhichJobsAreSessions(t *testing.T) {
	s := Sessions{
		Names: []string{"jupyter*", "sys/dashboard/*", "*lab"}, Partitions: []string{"ondemand"}, MemMiB: 4096,
		MaxSlowdown: 1.3,
	}
	for name, c := range map[string]struct {
		job      Job
		mib      float64 // 0 = it is no session
		contract float64
	}{
		"a batch job":            {Job{Name: "train", Partition: "gpu", Comment: "app=lmp"}, 0, 0},
		"by its name":            {Job{Name: "jupyter-3"}, 4096, 1.3},
		"a name of two parts":    {Job{Name: "sys/dashboard/rstudio"}, 4096, 1.3},
		"a name of three parts":  {Job{Name: "sys/dashboard/sys/rstudio"}, 4096, 1.3},
		"the end of a name":      {Job{Name: "ood/lab"}, 4096, 1.3},
		"by its partition":       {Job{Partition: "gpu,ondemand"}, 4096, 1.3},
		"by its owner's word":    {Job{Comment: "share:interactive"}, 4096, 1.3},
		"with more memory":       {Job{Comment: "share:interactive=8G"}, 8192, 1.3},
		"with the word for jobs": {Job{Comment: "share:interactive,share:memory=6G"}, 6144, 1.3},
		"with its own contract":  {Job{Comment: "share:interactive=512M,share:max-slowdown=2"}, 512, 2},
	} {
		got := s.Terms(&c.job)
		if len(got.Ignored) > 0 || got.Session != (c.mib > 0) || got.SessionMiB != c.mib || got.MaxSlowdown != c.contract {
			t.Errorf("%s: %+v, want %v MiB, a contract of %v", name, got, c.mib, c.contract)
		}
	}
	must.Equal(t, ParseTerms("share:try-memory=8G"), Terms{TryMiB: 8192})
	must.Equal(t, ParseTerms("share:memory=8G"), Terms{MemoryMiB: 8192})
	must.Equal(t, ParseTerms("share:report,share:no-mail"), Terms{Report: true, NoMail: true})
	for _, comment := range []string{
		"share:memory", "share:memory=8", "share:memory=0.1", "share:memory=-8G",
		"share:try-memory", "share:try-memory=8", "share:interactive=8", "share:interactive=-1G", "share:interactive=0M",
		"share:interactive=9999999999999G",
	} {
		if got := ParseTerms(comment); got.Session || got.TryMiB > 0 || got.MemoryMiB > 0 || len(got.Ignored) != 1 {
			t.Errorf("%s: %+v", comment, got)
		}
	}
}

// A job whose owner says only how much memory it needs may take a part of its limit, or all of it.
func TestAskedProfileMayReachItsLimit(t *testing.T) {
	p := AskedProfile("ann", "new", 3600, 8192)
	if err := p.Validate(); err != nil || p.HeldMiB != 8192 || p.Peak().MemMiB != 8192 || !p.Asked || p.App != "new" ||
		p.Owner != "ann" {
		t.Errorf("%+v: %v", p, err)
	}
	if most := p.DurationS + p.DurationSD; most < 3599 || most > 3601 || p.Left(0, 3600) > 1800 {
		t.Errorf("it takes %v s, at most %v", p.Left(0, 3600), most)
	}
	if p := AskedProfile("ann", "", 0, 8192); p.Validate() != nil || p.App == "" {
		t.Errorf("without a name and a limit: %+v", p)
	}
}

func TestSessionAppLastsForItsLimit(t *testing.T) {
	terms := Terms{SessionMiB: 2048}
	app := SessionApp(&Job{User: "ann", TimeLimit: time.Hour}, &terms)
	for _, p := range []error{app.Profile.Validate(), app.Profile.Busy.Validate()} {
		if p != nil {
			t.Error(p)
		}
	}
	if p := app.Profile; app.Key != "" || p.DurationS != 3600 || p.NeedMiB(0) < 2048 || p.Busy.Mean().GPU != 1 ||
		!app.Complete() {
		t.Errorf("%+v", p)
	}
}

func TestAMemberOfAnUnknownStateIsRefused(t *testing.T) {
	for _, state := range []string{"", "sleeping", "waitimg"} {
		err := json.Unmarshal([]byte(`{"ref":"1","state":"`+state+`"}`), new(Member))
		must.Fail(t, err, state)
	}
}

func FuzzParseTerms(f *testing.F) {
	for _, s := range []string{
		"app=lmp share:no", "share:max-slowdown=1.15,share:with=array;app=a.b-c_d", "share:max-slowdown=NaN", "app=",
		"share:", "share:yes\tshare:max-slowdown=1e9",
		"share:interactive=8G share:interactive", "app=\xff app=" + strings.Repeat("x", 65),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, comment string) {
		terms := ParseTerms(comment)
		if terms.App != "" && (!appShape.MatchString(terms.App) || !strings.Contains(comment, terms.App)) {
			t.Errorf("app %q", terms.App)
		}
		if m := terms.MaxSlowdown; m != 0 && !(m >= 1 && m <= 100) {
			t.Errorf("slowdown %v", m)
		}
		for _, s := range terms.Ignored {
			if len(s) > 600 || !utf8.ValidString(s) || strings.ContainsAny(s, "\n\x1b") {
				t.Errorf("%q", s)
			}
		}
		// Words that are no terms change nothing, wherever they stand.
		again := ParseTerms("hello " + comment + "\nsee ticket 7")
		if again.App != terms.App || again.MaxSlowdown != terms.MaxSlowdown || again.NoShare != terms.NoShare ||
			again.ArrayOnly != terms.ArrayOnly || len(again.Ignored) != len(terms.Ignored) {
			t.Errorf("%+v became %+v", terms, again)
		}
	})
}
