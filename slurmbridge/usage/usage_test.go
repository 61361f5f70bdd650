package usage

import (
	"context"
	"database/sql"
	"encoding/csv"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

var began = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func at(h float64) time.Time { return began.Add(time.Duration(h * float64(time.Hour))) }

// run is a run of some hours on one whole GPU that it used half of.
func run(ref, user string, from, to float64) history.Footprint {
	s := 3600 * (to - from)
	return history.Footprint{
		Ref: ref, User: user, Account: "lab", Partition: "gpu", App: "md", Node: "n1", Start: at(from), End: at(to), GPUs: 1,
		Whole: true,
		Use: &history.Use{
			KnownS: s, ComputedS: s / 2, IdleKnownS: s, IdleS: s / 4, MeanMiB: 100, PeakMiB: 500, CardMiB: 1000,
			EnergyJ: 3.6e6,
		},
	}
}

func open(t testing.TB) *sql.DB {
	t.Helper()
	db := must.Get(database.Open(t.Context(), filepath.Join(t.TempDir(), "s.db")))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

func reportOf(t testing.TB, q Query, runs ...history.Footprint) *Report {
	t.Helper()
	s := open(t)
	save(t, s, runs...)
	r, err := Make(t.Context(), s, q, at(24))
	if err != nil || r == nil {
		t.Fatalf("%v, %v", r, err)
	}
	return r
}

// save writes footprints as history does.
func save(t must.T, s *sql.DB, all ...history.Footprint) {
	must.OK(t, database.Tx(context.Background(), s, func(tx *sql.Tx) error {
		for i := range all {
			if err := all[i].Write(context.Background(), tx); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A damaged row names kinds of harm that there aren't, or harm of a run that isn't judged: the others count.
func TestDamagedFlags(t *testing.T) {
	s := open(t)
	late, unjudged := run("1", "ann", 1, 2), run("2", "bob", 1, 2)
	late.Judged, late.Harm, unjudged.Harm = true, []history.Harm{history.HarmLate}, []history.Harm{history.HarmOOM}
	save(t, s, unjudged, late)
	must.Get(s.ExecContext(t.Context(), `UPDATE bridge_used SET flags = flags | (1 << 40)`))(t)
	r := must.Get(Make(t.Context(), s, during(0, 24, User), at(24)))(t)
	must.Equal(t, r.Total.Harm, map[history.Harm]int{history.HarmLate: 1})
}

func during(from, to float64, by By) Query {
	return Query{Period: history.Period{From: at(from), To: at(to)}, By: by}
}

func report(t testing.TB, by By, runs ...history.Footprint) *Report {
	t.Helper()
	return reportOf(t, during(0, 24, by), runs...)
}

func same(a *float64, b float64) bool { return a != nil && math.Abs(*a-b) < 1e-9*max(1, math.Abs(b)) }

// Runs count by the part of their time in the period, and shares of a GPU as parts of one.
func TestWhatLinesSumUp(t *testing.T) {
	half := run("2", "ann", 0, 10)
	half.GPUs, half.Whole = 0.5, false
	quarter := run("4", "ann", 0, 10)
	quarter.GPUs, quarter.Whole, quarter.Use.SharedS = 0.25, false, 36000
	unheld := run("5", "ann", 0, 10)
	unheld.GPUs = 0
	known := func(v float64) *float64 { return &v }
	for what, c := range map[string]struct {
		runs []history.Footprint
		want Line // of what is compared
	}{
		"a run that began before, and some outside": {
			[]history.Footprint{run("1", "ann", -6, 6), run("2", "bob", 24, 30), run("3", "bob", -3, 0)},
			Line{
				Runs: 1, Held: 6, Computed: known(3), Idle: known(1.5), MemoryMean: known(0.1), MemoryPeak: known(0.5),
				Energy: known(0.5), Shared: known(0),
			},
		},
		"a whole GPU and a half": {
			[]history.Footprint{run("1", "ann", 0, 10), half},
			Line{
				Runs: 2, Held: 15, Computed: known(10), Idle: known(3.75), MemoryMean: known(0.1),
				MemoryPeak: known(0.5), Energy: known(2), Shared: known(0),
			},
		},
		// Half of the card's time, which is twice its share: all of what it held, and as much beyond.
		"a quarter of a GPU": {
			[]history.Footprint{quarter},
			Line{
				Runs: 1, Held: 2.5, Computed: known(2.5), Beyond: known(2.5), Idle: known(0.625), MemoryMean: known(0.1),
				MemoryPeak: known(0.5), Energy: known(1), Shared: known(2.5),
			},
		},
		"it isn't known what it held": {[]history.Footprint{unheld}, Line{Runs: 1, Unheld: 1}},
	} {
		r := report(t, User, c.runs...)
		got := r.Total
		got.Name, got.ComputedOf, got.MemoryOf, got.IdleOf, got.EnergyOf = "", 0, 0, 0, 0
		if diff := cmp.Diff(c.want, got, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		must.Equal(t, strings.Contains(strings.Join(r.Notes, " "), "Left out: 1 run with an unknown part of a GPU"),
			c.want.Unheld > 0, "a note of %s", what)
	}
	if l := report(t, User, quarter).Total; !same(l.Utilisation(), 1) {
		t.Errorf("of held %v", *l.Utilisation())
	}
}

func TestWhatIsNotKnownIsEmpty(t *testing.T) {
	f := run("1", "ann", 0, 10)
	f.Use = nil
	r := report(t, User, f)
	must.Equal(t, r.Total, Line{Name: "all", Runs: 1, Held: 10}, "no more is known than what was held")
	var text, table strings.Builder
	must.OK(t, r.CSV(&text))
	rows, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatalf("%v %q", err, text.String())
	}
	for i, name := range rows[0] {
		known := map[string]string{
			"user": "ann", "runs": "1", "held_gpu_h": "10", "computed_known_of_gpu_h": "0",
			"computed_by_profile_gpu_h": "0", "idle_known_of_gpu_h": "0", "energy_known_of_gpu_h": "0", "runs_not_known": "0",
		}
		must.Equal(t, rows[1][i], known[name], "%s", name)
	}
	r.Text(&table, 10)
	if s := table.String(); strings.Contains(s, "computed h") || strings.Contains(s, "kWh") ||
		!strings.Contains(s, "For 10.0 h held (100 %) the time computed is unknown") {
		t.Errorf("%s", s)
	}
}

// Harm is of the period in which a run ended.
func TestHarmOfAPeriod(t *testing.T) {
	f, unharmed := run("1", "ann", 0, 2), run("2", "bob", 3, 4)
	f.Judged, f.Harm, unharmed.Judged = true, []history.Harm{history.HarmOOM, history.HarmLate}, true
	r := report(t, User, f, f, unharmed, run("3", "eve", 5, 6))
	got := map[string]string{"": r.Total.HarmText()}
	for i := range r.Lines {
		got[r.Lines[i].Name] = r.Lines[i].HarmText()
	}
	must.Equal(t, got, map[string]string{"": "1 oom, 1 late", "ann": "1 oom, 1 late", "bob": "none", "eve": ""})
	must.Equal(t, reportOf(t, during(0, 1, User), f).Total.HarmText(), "none", "before it ended")
}

// A run that hasn't ended counts until the given time, by what it holds.
func TestRunsThatGoOn(t *testing.T) {
	s := open(t)
	f := run("1", "ann", -3, 0)
	f.End, f.Use = time.Time{}, nil
	save(t, s, f, run("2", "bob", -6, -5))
	for now, want := range map[float64]float64{-4: 0, 2: 2, 30: 24} {
		r := must.Get(Make(t.Context(), s, during(0, 24, User), at(now)))(t)
		if r == nil {
			r = &Report{}
		}
		must.Equal(t, r.Total.Held, want, "held until %v h", now)
	}
	must.Equal(t, must.Get(history.FirstFootprint(t.Context(), s))(t), at(-5).Local(), "the first end")
	must.OK(t, history.ForgetFootprints(t.Context(), s, at(100)))
	r := must.Get(Make(t.Context(), s, during(0, 24, Job), at(2)))(t)
	must.Equal(t, r.Total.Runs, 1, "after what has ended was forgotten")
}

// Of many jobs those that held most have lines; one that ran twice counts by both runs, and all count in the total.
func TestTheLargestJobs(t *testing.T) {
	runs := []history.Footprint{run("1", "ann", 0, 5), run("2", "bob", 0, 4), run("3", "eve", 0, 1)}
	runs = append(runs, run("twice", "eve", 1, 4), run("twice", "eve", 5, 8))
	q := during(0, 24, Job)
	for limit, want := range map[int]string{0: "twice 1 2 3", 4: "twice 1 2 3", 2: "twice 1"} {
		q.Limit = limit
		r := reportOf(t, q, runs...)
		var names []string
		left := 5
		for _, l := range r.Lines {
			names = append(names, l.Name)
			left -= l.Runs
		}
		must.Equal(t, strings.Join(names, " "), want, "of %d", limit)
		must.Equal(t, []int{r.Total.Runs, r.More}, []int{5, left}, "runs in all, and in no line, of %d", limit)
	}
	q.By, q.Limit = User, 1
	if r := reportOf(t, q, runs...); len(r.Lines) != 1 || r.Lines[0].Name != "eve" || r.More != 2 || r.Total.Held != 16 {
		t.Errorf("%+v", r)
	}
}

// An account is found however its letters are written, as Slurm finds it; a user isn't.
func TestAccountsInCapitals(t *testing.T) {
	q := during(0, 24, User)
	q.Accounts = []string{"Lab"}
	must.Equal(t, reportOf(t, q, run("1", "ann", 0, 5)).Total.Runs, 1)
	s := open(t)
	save(t, s, run("1", "ann", 0, 5))
	q.Accounts, q.Users = nil, []string{"Ann"}
	must.Equal(t, must.Get(Make(t.Context(), s, q, at(24)))(t), nil)
}

func TestCharged(t *testing.T) {
	whole, share := run("1", "ann", 0, 10), run("2", "ann", 0, 10)
	share.GPUs, share.Whole = 0.5, false
	q := during(0, 24, User)
	for _, c := range []struct {
		w    Weights
		want float64
	}{{Weights{GPU: 200, Share: 2}, 15}, {Weights{GPU: 200}, 10}, {Weights{GPU: 200, Share: 4}, 20}} {
		q.Weights = map[string]Weights{"gpu": c.w}
		if l := reportOf(t, q, whole, share).Total; !same(l.Charged, c.want) {
			t.Errorf("%+v: %v", c.w, l.Charged)
		}
	}
	q.Weights = map[string]Weights{"gpu": {Share: 2}}
	must.Equal(t, reportOf(t, q, whole).Total.Charged, nil, "no GPU is charged")
}

// hours draws a time that is known exactly, in ms, too.
func hours(rt *rapid.T, from, to int, name string) float64 {
	return float64(rapid.IntRange(64*from, 64*to).Draw(rt, name)) / 64
}

// However runs are grouped and the time is cut, the sums stay the same.
func TestSumsAgree(t *testing.T) {
	ctx := t.Context()
	s := open(t)
	property.Check(t, func(rt *rapid.T) {
		must.Get(s.Exec("DELETE FROM bridge_used"))(rt) // a new database costs more than the test
		var all []history.Footprint
		for i := range rapid.IntRange(1, 12).Draw(rt, "runs") {
			from := hours(rt, -1000, 900, "from")
			f := run(string(rune('a'+i)), rapid.SampledFrom([]string{"ann", "bob", "eve"}).Draw(rt, "user"), from,
				from+rapid.SampledFrom([]float64{1. / 64, 1, 30, 300}).Draw(rt, "long"))
			f.Node = rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node")
			f.GPUs = rapid.SampledFrom([]float64{0, 0.33, 1, 2}).Draw(rt, "gpus")
			f.Judged = rapid.Bool().Draw(rt, "judged")
			switch rapid.IntRange(0, 2).Draw(rt, "recorded") {
			case 0:
				f.Use = nil
			case 1: // for longer than accounting counts
				f.Use.KnownS *= 2
				f.Use.IdleKnownS *= 2
				f.Use.IdleS, f.Use.SharedS = f.Use.KnownS, f.Use.KnownS
			}
			all = append(all, f)
			save(rt, s, f)
		}
		sum := func(from, to float64, by By) (held, computed float64, count int) {
			r := must.Get(Make(ctx, s, during(from, to, by), at(24)))(rt)
			if r == nil {
				return 0, 0, 0
			}
			for _, l := range r.Lines {
				held += l.Held
				count += l.Runs
				for _, part := range []*float64{l.Computed, l.Beyond} {
					if part != nil {
						computed += *part
					}
				}
				for _, part := range []*float64{l.Computed, l.Idle, l.Shared} {
					if part != nil && *part > l.Held+1e-6 {
						rt.Fatalf("a part above the whole: %+v", l)
					}
				}
				if u := l.Utilisation(); u != nil && *u > 1 {
					rt.Fatalf("%v computed of what was held: %+v", *u, l)
				}
				if l.Idle != nil && *l.Idle > l.IdleOf+1e-6 || l.ComputedOf > l.Held+1e-6 {
					rt.Fatalf("%+v", l)
				}
			}
			if math.Abs(held-r.Total.Held) > 1e-6 || count != r.Total.Runs {
				rt.Fatalf("by %s: lines %v, total %v", by, held, r.Total.Held)
			}
			return held, computed, count
		}
		from := hours(rt, -1000, 0, "since")
		to := from + rapid.SampledFrom([]float64{24, 400, 1500}).Draw(rt, "for")
		held, computed, count := 0.0, 0.0, 0
		for i := range all {
			f := &all[i]
			part := math.Min(to, f.End.Sub(began).Hours()) - math.Max(from, f.Start.Sub(began).Hours())
			if part <= 1e-6 {
				continue
			}
			count++
			held += f.GPUs * part
			if f.Use != nil && f.GPUs > 0 {
				computed += max(1, f.GPUs) * part / 2
			}
		}
		for _, by := range Ways() {
			if h, c, n := sum(from, to, by); math.Abs(h-held) > 1e-3 || math.Abs(c-computed) > 1e-3 || n != count {
				rt.Fatalf("by %s: %v h, %v h computed, %d runs; they are %v, %v, %d", by, h, c, n, held, computed, count)
			}
		}
		cut := hours(rt, int(from)+1, int(to)-1, "cut")
		h1, c1, _ := sum(from, cut, User)
		h2, c2, _ := sum(cut, to, User)
		if math.Abs(h1+h2-held) > 1e-3 || math.Abs(c1+c2-computed) > 1e-3 {
			rt.Fatalf("cut: %v + %v, %v", h1, h2, held)
		}
	})
}

// However small a site is, its figures are told in a unit that fits them.
func TestUnitsFitTheFigures(t *testing.T) {
	minute := 1. / 60
	for _, c := range []struct {
		runs  []history.Footprint
		head  string
		cells []string
	}{
		{
			runs: []history.Footprint{run("1", "ann", 0, 20), run("2", "bob", 0, minute)}, head: "HELD H",
			cells: []string{"20.0", "<0.1"},
		},
		{
			runs: []history.Footprint{run("1", "ann", 0, 2), run("2", "bob", 0, minute)}, head: "HELD MIN",
			cells: []string{"120.0", "1.0"},
		},
		{
			runs: []history.Footprint{run("1", "ann", 0, 2*minute), run("2", "bob", 0, minute/10)}, head: "HELD S",
			cells: []string{"120.0", "6.0"},
		},
	} {
		var text strings.Builder
		report(t, User, c.runs...).Text(&text, 10)
		for _, want := range append(c.cells, c.head) {
			must.Contain(t, text.String(), " "+want+" ")
		}
		if strings.Contains(text.String(), " 0.0 ") {
			t.Errorf("what is more than nothing looks like nothing: %s", text.String())
		}
	}
	for sum, want := range map[float64]string{0: "0", 0.04: "<0.1", -0.04: ">-0.1", -3: "-3.0", 12.34: "12.3"} {
		must.Equal(t, HoursFor(100).Text(sum), want, "%v h", sum)
	}
}

// Names are users' own words.
func TestNamesInTablesAreUsersWords(t *testing.T) {
	f := run("1", "ann", 0, 1)
	f.App = "=HYPERLINK(\"x\")\x1b[2J\u202e"
	r := report(t, Application, f)
	var table, text strings.Builder
	r.Text(&table, 1)
	must.OK(t, r.CSV(&text))
	if strings.ContainsAny(table.String()+text.String(), "\x1b\u202e") || strings.Contains(text.String(), "\n\"=") {
		t.Errorf("%s%s", table.String(), text.String())
	}
	must.Is(t, must.Err(ParseBy("colour")), ErrBy)
}
