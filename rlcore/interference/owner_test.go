package interference

import (
	"fmt"
	"math"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// owned gives profiles an owner.
func owned(owner string, ps ...*rlcore.Profile) []*rlcore.Profile {
	out := make([]*rlcore.Profile, len(ps))
	for i, p := range ps {
		one := *p
		one.Owner = owner
		out[i] = &one
	}
	return out
}

func predicted(m *Model, members []*rlcore.Profile) rlcore.Prediction {
	dst := make([]rlcore.Prediction, len(members))
	m.Predict(dst, anyCard, members)
	return dst[0]
}

// Names are free: what a user's jobs do under a name of another's application parts nobody else's, and shifts what is
// believed of others' within bounds, until their own co-runs say better.
func TestANameIsItsOwners(t *testing.T) {
	ab := pairOf("a", "b", 0.6, 0.6)
	ann, eve := owned("ann", ab...), owned("eve", ab...)
	fresh := predicted(New(&contention.MPS), ann)

	m := New(&contention.MPS)
	for range 200 {
		m.all(anyCard, eve, 50, 50)
	}
	m.Forbid(eve[0].Identity(), eve[1].Identity())
	m.Doubt(eve[0].Identity(), []rlcore.Identity{eve[1].Identity()})
	if !m.Forbidden(nil, eve) || m.Forbidden(nil, ann) {
		t.Error("eve parts ann's applications, or not her own")
	}
	if m.Forbidden(nil, []*rlcore.Profile{ann[0], eve[1]}) {
		t.Error("eve parts ann's application from hers, next to which it never was")
	}
	poisoned := predicted(m, ann)
	if most := fresh.Slowdown + (fresh.Slowdown-1+Floor)*math.Expm1(mostStrange); poisoned.Slowdown > most+1e-9 ||
		poisoned.Slowdown <= fresh.Slowdown {
		t.Errorf("ann's slowdown is believed to be %.2f instead of %.2f, at most %.2f", poisoned.Slowdown, fresh.Slowdown,
			most)
	}
	for range 5 {
		m.all(anyCard, ann, 1.1, 1.1)
	}
	honest := New(&contention.MPS)
	for range 5 {
		honest.all(anyCard, ann, 1.1, 1.1)
	}
	// The model of card is everybody's.
	must.Near(t, predicted(m, ann).Slowdown, predicted(honest, ann).Slowdown, 0.05,
		"ann's slowdown after five runs of her own, beside that without eve")
}

// What others' applications of the name did is what is believed of a newcomer's.
func TestOthersAreAPrior(t *testing.T) {
	ab := pairOf("a", "b", 0.6, 0.6)
	m := New(&contention.MPS)
	law := predicted(m, owned("ann", ab...)).Slowdown
	for range 5 {
		m.all(anyCard, owned("ann", ab...), 1.05, 1.05)
	}
	if own, bob := predicted(m, owned("ann", ab...)).Slowdown,
		predicted(m, owned("bob", ab...)).Slowdown; !(own < bob && bob < law) {
		t.Errorf("ann's slowdown %.3f, bob's %.3f, by the law %.3f", own, bob, law)
	}
	l, ok := m.Lesson(anyCard, owned("ann", ab...), 1.05, math.NaN(), 1)
	if !ok || l.Owner != "ann" || len(l.Owners) != 1 || l.Owners[0] != "ann" {
		t.Errorf("lesson %+v", l)
	}
}

// However many co-runs a user has, and however many names for them, what is believed of others' applications moves within
// bounds, and there is room to learn of them.
func TestOneUsersWeightIsBounded(t *testing.T) {
	ann := owned("ann", using("x", 0.5, 0.5, 0.02), using("y", 0.7, 0.3, 0.05))
	fresh := predicted(New(&contention.MPS), ann)
	most := fresh.Slowdown + (fresh.Slowdown-1+Floor)*math.Expm1(mostStrange)
	for _, names := range []int{40, 2000} {
		m := New(&contention.MPS)
		eve := func(i int) *rlcore.Profile {
			i %= names
			return owned("eve", using(fmt.Sprint("e", i), 0.3+0.6*float64(i%7)/6, 0.1+0.8*float64(i%5)/4, 0.01))[0]
		}
		for i := range 2000 {
			m.all(anyCard, []*rlcore.Profile{eve(i), eve(i/40 + i)}, 100, 100)
		}
		for _, l := range []*learned{&m.way(anyCard).learned, &m.way(anyCard).site} {
			if l.held["eve"] > mostCells || l.places["eve"] > mostOfOwner+1 {
				t.Errorf("of %d names eve has %d cells and %d places", names, l.held["eve"], l.places["eve"])
			}
		}
		if got := predicted(m, ann).Slowdown; got > most+1e-9 {
			t.Errorf("after %d names ann's slowdown is believed to be %.2f, at most %.2f", names, got, most)
		}
		for range 5 {
			m.all(anyCard, ann, 1.1, 1.1)
		}
		own, clone := predicted(m, ann), m.Clone()
		must.Near(t, own.Slowdown, 1.1, 0.1, "ann's own co-runs at 1.1")
		if got := predicted(clone, ann); math.Abs(got.Slowdown-own.Slowdown) > 1e-6 ||
			clone.way(anyCard).site.places["eve"] != m.way(anyCard).site.places["eve"] {
			t.Errorf("a clone believes %+v instead of %+v", got, own)
		}
	}
}

// However many names a user invents for jobs that fail, are too slow or take co-runners along, what is remembered stays
// bounded, and what others' jobs said is remembered.
func TestNamesFillNobodyElsesMemory(t *testing.T) {
	m := New(&contention.MPS)
	of := func(owner, app string) rlcore.Identity { return rlcore.Identity{App: app, Owner: owner} }
	ann := owned("ann", pairOf("a", "b", 0.3, 0.3)...)
	m.Forbid(ann[0].Identity(), ann[1].Identity())
	m.Doubt(ann[1].Identity(), []rlcore.Identity{ann[0].Identity()})
	const names = 5000
	victim := of("eve", "victim")
	for i := range names {
		x := of("eve", fmt.Sprint(i))
		m.Forbid(x, of("ann", "a"))
		m.Forbid(victim, x)
		m.Doubt(victim, []rlcore.Identity{x})
	}
	n := 0
	for _, s := range m.Standings() {
		n += len(s.Others)
	}
	must.Equal(t, n, 2+standingsOfUser-1+MostOthers, "pairs that are remembered")
	if !m.Forbidden(nil, ann) || m.doubt([]*rlcore.Profile{ann[1], ann[0]}, 0) != 2 {
		t.Error("what ann's jobs said is forgotten")
	}
	last := owned("eve", &rlcore.Profile{App: fmt.Sprint(names - 1)})
	if !m.Forbidden(nil, append(last, ann[0])) {
		t.Error("the last of eve's is forgotten")
	}
}
