package usage

import (
	"encoding/csv"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

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

func report(by By, runs ...history.Footprint) *Report {
	t := New(Query{From: at(0), To: at(24), By: by})
	t.Add(runs)
	return t.Report()
}

func same(a *float64, b float64) bool { return a != nil && math.Abs(*a-b) < 1e-9*max(1, math.Abs(b)) }

func TestRunsCountByTheirPartOfThePeriod(t *testing.T) {
	r := report(User, run("1", "ann", -6, 6), run("2", "bob", 20, 28), run("3", "bob", 24, 30), run("4", "ann", -3, 0))
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
	r := report(User, f)
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
	l := report(User, f).Total
	// Half of the card's time, which is twice its share.
	if l.Held != 2.5 || !same(l.Computed, 5) || !same(l.Utilisation(), 2) || !same(l.Shared, 2.5) {
		t.Errorf("%+v", l)
	}
	f.GPUs = 0
	r := report(User, f)
	if l := r.Total; l.Held != 0 || l.Unheld != 1 || l.Computed != nil || !strings.Contains(strings.Join(r.Notes, " "), "Of 1 runs it isn't known how much of a GPU") {
		t.Errorf("%+v", l)
	}
}

func TestHarmOfWhatFailedAloneTooIsNone(t *testing.T) {
	f, again := run("1", "ann", 0, 2), run("1", "ann", 3, 4)
	f.Judged, f.Suspect, f.Harm = true, true, []history.Harm{history.HarmOOM, history.HarmLate}
	again.Judged = true
	if r := report(User, f, again); r.Total.HarmText() != "1 oom, 1 late" {
		t.Errorf("%s", r.Total.HarmText())
	}
	again.Cleared = true
	if r := report(User, f, again); r.Total.HarmText() != "1 late" || r.Lines[0].HarmText() != "1 late" {
		t.Errorf("%s, %s", r.Total.HarmText(), r.Lines[0].HarmText())
	}
	if r := report(User, again); r.Total.HarmText() != "none" {
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
		tab := New(Query{From: at(0), To: at(24), By: User, Weights: map[string]Weights{"gpu": c.w}})
		tab.Add([]history.Footprint{whole, share})
		if l := tab.Report().Total; !same(l.Charged, c.want) {
			t.Errorf("%+v: %v", c.w, l.Charged)
		}
	}
	tab := New(Query{From: at(0), To: at(24), By: User, Weights: map[string]Weights{"gpu": {Share: 2}}})
	tab.Add([]history.Footprint{whole})
	if l := tab.Report().Total; l.Charged != nil {
		t.Errorf("no GPU is charged: %v", *l.Charged)
	}
}

// However runs are grouped and the time is cut, the sums stay the same, and no figure exceeds what bounds it.
func TestSumsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var runs []history.Footprint
		for i := range rapid.IntRange(1, 30).Draw(t, "runs") {
			from := rapid.Float64Range(-10, 20).Draw(t, "from")
			f := run(string(rune('a'+i)), rapid.SampledFrom([]string{"ann", "bob", "eve"}).Draw(t, "user"), from, from+rapid.Float64Range(0.01, 30).Draw(t, "long"))
			f.Node = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")
			f.GPUs = rapid.SampledFrom([]float64{0, 0.33, 1, 2}).Draw(t, "gpus")
			if rapid.Bool().Draw(t, "unrecorded") {
				f.Use = nil
			}
			runs = append(runs, f)
		}
		sum := func(from, to float64, by By) (held, computed float64) {
			tab := New(Query{From: at(from), To: at(to), By: by})
			tab.Add(runs)
			r := tab.Report()
			for _, l := range r.Lines {
				held += l.Held
				if l.Computed != nil {
					computed += *l.Computed
				}
				if l.Idle != nil && *l.Idle > l.IdleOf+1e-6 || l.ComputedOf > l.Held+1e-6 {
					t.Fatalf("%+v", l)
				}
			}
			if math.Abs(held-r.Total.Held) > 1e-6 {
				t.Fatalf("by %s: lines %v, total %v", by, held, r.Total.Held)
			}
			return held, computed
		}
		held, computed := sum(0, 24, User)
		for _, by := range Ways() {
			if h, c := sum(0, 24, by); math.Abs(h-held) > 1e-6 || math.Abs(c-computed) > 1e-6 {
				t.Fatalf("by %s: %v %v, by user %v %v", by, h, c, held, computed)
			}
		}
		cut := rapid.Float64Range(1, 23).Draw(t, "cut")
		h1, c1 := sum(0, cut, User)
		h2, c2 := sum(cut, 24, User)
		if math.Abs(h1+h2-held) > 1e-6 || math.Abs(c1+c2-computed) > 1e-6 {
			t.Fatalf("cut: %v + %v, %v", h1, h2, held)
		}
	})
}

// Names are users' own words.
func TestHostileNames(t *testing.T) {
	f := run("1", "ann", 0, 1)
	f.App = "=HYPERLINK(\"x\")\x1b[2J\u202e"
	r := report(Application, f)
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
