package usage

import (
	"encoding/csv"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

var began = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func at(h float64) time.Time { return began.Add(time.Duration(h * float64(time.Hour))) }

// run is a run of some hours on one whole GPU that it used half of.
func run(ref, user string, from, to float64) history.Footprint {
	s := 3600 * (to - from)
	return history.Footprint{
		Ref: ref, User: user, Account: "lab", Partition: "gpu", App: "md", Node: "n1", Start: at(from), End: at(to), GPUs: 1, Whole: true,
		Use: &history.Use{KnownS: s, ComputedS: s / 2, IdleKnownS: s, IdleS: s / 4, MeanMiB: 100, PeakMiB: 500, CardMiB: 1000, EnergyJ: 3.6e6},
	}
}

func open(t testing.TB) Store {
	t.Helper()
	db, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return Store{DB: db}
}

func reportOf(t testing.TB, q Query, runs ...history.Footprint) *Report {
	t.Helper()
	s := open(t)
	if err := s.Save(t.Context(), at(-1000), at(1000), runs); err != nil {
		t.Fatal(err)
	}
	r, err := s.Report(t.Context(), q, nil)
	if err != nil || r == nil {
		t.Fatalf("%v, %v", r, err)
	}
	return r
}

func report(t testing.TB, by By, runs ...history.Footprint) *Report {
	t.Helper()
	return reportOf(t, Query{From: at(0), To: at(24), By: by}, runs...)
}

func same(a *float64, b float64) bool { return a != nil && math.Abs(*a-b) < 1e-9*max(1, math.Abs(b)) }

func TestRunsCountByTheirPartOfThePeriod(t *testing.T) {
	r := report(t, User, run("1", "ann", -6, 6), run("2", "bob", 20, 28), run("3", "bob", 24, 30), run("4", "ann", -3, 0))
	if len(r.Lines) != 2 || r.Lines[0].Name != "ann" || r.Lines[0].Runs != 1 {
		t.Fatalf("%+v", r.Lines)
	}
	ann := r.Lines[0]
	if ann.Held != 6 || !same(ann.Computed, 3) || !same(ann.Idle, 1.5) || !same(ann.MemoryMean, 0.1) || !same(ann.MemoryPeak, 0.5) || !same(ann.Energy, 0.5) || !same(ann.Utilisation(), 0.5) {
		t.Errorf("%+v", ann)
	}
	if r.Total.Held != 10 || r.Total.Runs != 2 {
		t.Errorf("%+v", r.Total)
	}
}

func TestWhatIsNotKnownIsEmpty(t *testing.T) {
	f := run("1", "ann", 0, 10)
	f.Use = nil
	r := report(t, User, f)
	l := r.Total
	if l.Held != 10 || l.Computed != nil || l.Idle != nil || l.Shared != nil || l.MemoryMean != nil || l.Energy != nil || l.WaitSaved != nil || l.TimeLost != nil || l.Harm != nil || l.Charged != nil {
		t.Errorf("%+v", l)
	}
	var text, table strings.Builder
	if err := r.CSV(&text); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(text.String())).ReadAll()
	if err != nil || len(rows) != 2 {
		t.Fatalf("%v %q", err, text.String())
	}
	for i, name := range rows[0] {
		known := map[string]string{"user": "ann", "runs": "1", "held_gpu_h": "10", "computed_known_of_gpu_h": "0", "computed_by_profile_gpu_h": "0", "idle_known_of_gpu_h": "0", "energy_known_of_gpu_h": "0", "runs_not_known": "0"}
		if rows[1][i] != known[name] {
			t.Errorf("%s is %q", name, rows[1][i])
		}
	}
	r.Text(&table, 10)
	if s := table.String(); strings.Contains(s, "computed h") || strings.Contains(s, "kWh") || !strings.Contains(s, "Of 10.0 hours held (100 %) it isn't known") {
		t.Errorf("%s", s)
	}
}

func TestSharesArePartsOfAGPU(t *testing.T) {
	f := run("1", "ann", 0, 10)
	f.GPUs, f.Whole = 0.25, false
	f.Use.SharedS = 36000
	l := report(t, User, f).Total
	// Half of the card's time, which is twice its share.
	if l.Held != 2.5 || !same(l.Computed, 5) || !same(l.Utilisation(), 2) || !same(l.Shared, 2.5) {
		t.Errorf("%+v", l)
	}
	f.GPUs = 0
	r := report(t, User, f)
	if l := r.Total; l.Held != 0 || l.Unheld != 1 || l.Computed != nil || !strings.Contains(strings.Join(r.Notes, " "), "Of 1 runs it isn't known how much of a GPU") {
		t.Errorf("%+v", l)
	}
}

func TestHarmOfWhatFailedAloneTooIsNone(t *testing.T) {
	f, again := run("1", "ann", 0, 2), run("1", "ann", 3, 4)
	f.Judged, f.Suspect, f.Harm = true, true, []history.Harm{history.HarmOOM, history.HarmLate}
	again.Judged = true
	if r := report(t, User, f, again); r.Total.HarmText() != "1 oom, 1 late" {
		t.Errorf("%s", r.Total.HarmText())
	}
	again.Cleared = true
	if r := report(t, User, f, again); r.Total.HarmText() != "1 late" || r.Lines[0].HarmText() != "1 late" {
		t.Errorf("%s, %s", r.Total.HarmText(), r.Lines[0].HarmText())
	}
	if r := report(t, User, again); r.Total.HarmText() != "none" {
		t.Errorf("%s", r.Total.HarmText())
	}
}

func TestCharged(t *testing.T) {
	whole, share := run("1", "ann", 0, 10), run("2", "ann", 0, 10)
	share.GPUs, share.Whole = 0.5, false
	for _, c := range []struct {
		w    Weights
		want float64
	}{{Weights{GPU: 200, Share: 2}, 15}, {Weights{GPU: 200}, 10}, {Weights{GPU: 200, Share: 4}, 20}} {
		if l := reportOf(t, Query{From: at(0), To: at(24), By: User, Weights: map[string]Weights{"gpu": c.w}}, whole, share).Total; !same(l.Charged, c.want) {
			t.Errorf("%+v: %v", c.w, l.Charged)
		}
	}
	if l := reportOf(t, Query{From: at(0), To: at(24), By: User, Weights: map[string]Weights{"gpu": {Share: 2}}}, whole).Total; l.Charged != nil {
		t.Errorf("no GPU is charged: %v", *l.Charged)
	}
}

// hours draws a time that is known exactly, in ms, too.
func hours(rt *rapid.T, from, to int, name string) float64 {
	return float64(rapid.IntRange(64*from, 64*to).Draw(rt, name)) / 64
}

// However runs are grouped, the time is cut and weeks are summed up, the sums stay the same.
func TestSumsAgree(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t)
		var all []history.Footprint
		for i := range rapid.IntRange(1, 30).Draw(rt, "runs") {
			from := hours(rt, -1000, 900, "from")
			f := run(string(rune('a'+i)), rapid.SampledFrom([]string{"ann", "bob", "eve"}).Draw(rt, "user"), from, from+rapid.SampledFrom([]float64{1. / 64, 1, 30, 300}).Draw(rt, "long"))
			f.Node = rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node")
			f.GPUs = rapid.SampledFrom([]float64{0, 0.33, 1, 2}).Draw(rt, "gpus")
			f.Judged = rapid.Bool().Draw(rt, "judged")
			if rapid.Bool().Draw(rt, "unrecorded") {
				f.Use = nil
			}
			all = append(all, f)
			if err := s.Save(ctx, f.End, f.End.Add(time.Hour), []history.Footprint{f}); err != nil {
				rt.Fatal(err)
			}
		}
		sum := func(from, to float64, by By) (held, computed float64, count int) {
			r, err := s.Report(ctx, Query{From: at(from), To: at(to), By: by}, nil)
			if err != nil {
				rt.Fatal(err)
			}
			if r == nil {
				return 0, 0, 0
			}
			for _, l := range r.Lines {
				held += l.Held
				count += l.Runs
				if l.Computed != nil {
					computed += *l.Computed
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
		for _, settled := range []float64{0, hours(rt, -500, 1500, "settled"), 2000} {
			if settled != 0 {
				if err := s.SetSettled(ctx, at(settled), 1); err != nil {
					rt.Fatal(err)
				}
				// A record that comes late changes a week that is summed up.
				f := &all[rapid.IntRange(0, len(all)-1).Draw(rt, "late")]
				if err := s.Save(ctx, f.End, f.End.Add(time.Hour), []history.Footprint{*f}); err != nil {
					rt.Fatal(err)
				}
			}
			for _, by := range Ways() {
				if h, c, n := sum(from, to, by); math.Abs(h-held) > 1e-3 || math.Abs(c-computed) > 1e-3 || n != count {
					rt.Fatalf("settled up to %v, by %s: %v h, %v h computed, %d runs; they are %v, %v, %d", settled, by, h, c, n, held, computed, count)
				}
			}
			cut := hours(rt, int(from)+1, int(to)-1, "cut")
			h1, c1, _ := sum(from, cut, User)
			h2, c2, _ := sum(cut, to, User)
			if math.Abs(h1+h2-held) > 1e-3 || math.Abs(c1+c2-computed) > 1e-3 {
				rt.Fatalf("cut: %v + %v, %v", h1, h2, held)
			}
		}
	})
}

// Names are users' own words.
func TestHostileNames(t *testing.T) {
	f := run("1", "ann", 0, 1)
	f.App = "=HYPERLINK(\"x\")\x1b[2J\u202e"
	r := report(t, Application, f)
	var table, text strings.Builder
	r.Text(&table, 1)
	if err := r.CSV(&text); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(table.String()+text.String(), "\x1b\u202e") || strings.Contains(text.String(), "\n\"=") {
		t.Errorf("%s%s", table.String(), text.String())
	}
	if _, err := ParseBy("colour"); !errors.Is(err, ErrBy) {
		t.Error(err)
	}
}
