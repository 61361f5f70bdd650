// Package turns bounds how many things a daemon does at a time for the hosts that ask for them.
package turns

import (
	"context"
	"sync"
)

// Turns is a semaphore with a part for each host: the requests of one host wait for each other, and a flood from one
// host keeps no other host waiting.
type Turns struct {
	all    chan struct{}
	ofHost int

	mu    sync.Mutex
	hosts map[string]*host
}

type host struct {
	slots chan struct{}
	users int
}

// New returns turns for all requests at a time, and ofHost of each host's.
func New(all, ofHost int) *Turns {
	return &Turns{all: make(chan struct{}, all), ofHost: ofHost, hosts: map[string]*host{}}
}

// Enter waits for a turn of the host, and returns the function that ends it, or the context's error.
func (t *Turns) Enter(ctx context.Context, name string) (leave func(), err error) {
	t.mu.Lock()
	h := t.hosts[name]
	if h == nil {
		h = &host{slots: make(chan struct{}, t.ofHost)}
		t.hosts[name] = h
	}
	h.users++
	t.mu.Unlock()
	taken := make([]chan struct{}, 0, 2)
	leave = func() {
		for _, slots := range taken {
			<-slots
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(t.hosts, name)
		}
	}
	for _, slots := range []chan struct{}{h.slots, t.all} {
		select {
		case slots <- struct{}{}:
			taken = append(taken, slots)
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	return leave, nil
}

// Held returns how many turns and hosts are in use.
func (t *Turns) Held() (all, hosts int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all), len(t.hosts)
}
