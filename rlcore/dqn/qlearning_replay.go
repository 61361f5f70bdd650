package dqn

import (
	"math"
	"math/rand/v2"
)

// replay is prioritised experience replay (Schaul et al., ICLR 2016), the proportional variant: a transition is drawn
// with probability p^α ÷ Σ p^α, where p is the absolute value of its last temporal-difference error.
type replay struct {
	alpha float64
	items []transition
	tree  []float64 // sums; leaf i is tree[size+i]
	size  int       // leaves, a power of 2
	next  int       // the item to replace once all are in use
	most  float64   // largest priority so far, that of new items
}

func newReplay(capacity int, alpha float64) *replay {
	size := 1
	for size < capacity {
		size *= 2
	}
	return &replay{
		alpha: alpha, items: make([]transition, 0, capacity), tree: make([]float64, 2*size), size: size,
		most: 1,
	}
}

func (r *replay) len() int { return len(r.items) }

func (r *replay) add(t transition) {
	if len(r.items) < cap(r.items) {
		r.items = append(r.items, t)
		r.set(len(r.items)-1, r.most)
		return
	}
	r.items[r.next] = t
	r.set(r.next, r.most)
	r.next = (r.next + 1) % cap(r.items)
}

// update sets the priority of item i from its error.
func (r *replay) update(i int, err float64) {
	p := math.Pow(math.Abs(err)+1e-3, r.alpha)
	r.most = max(r.most, p)
	r.set(i, p)
}

func (r *replay) set(i int, p float64) {
	k := r.size + i
	r.tree[k] = p
	for k > 1 {
		k /= 2
		r.tree[k] = r.tree[2*k] + r.tree[2*k+1]
	}
}

// draw fills idx with one item from each of len(idx) equal parts of the priorities'
// sum, and weight with their importance weights (N·P)^−β, not divided by the largest.
func (r *replay) draw(idx []int, weight []float64, beta float64, rnd *rand.Rand) {
	total := r.tree[1]
	part := total / float64(len(idx))
	for k := range idx {
		at := (float64(k) + rnd.Float64()) * part
		i := 1
		for i < r.size {
			i *= 2
			if at >= r.tree[i] && r.tree[i+1] > 0 {
				at -= r.tree[i]
				i++
			}
		}
		i = min(i-r.size, len(r.items)-1)
		idx[k] = i
		weight[k] = math.Pow(float64(len(r.items))*max(r.tree[r.size+i], 1e-12)/total, -beta)
	}
}
