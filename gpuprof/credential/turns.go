package credential

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Turns decodes credentials in turn: MUNGE takes a process for each, and anybody may send some that
// prove nothing. A host has at most mostOfHost decoded at once and all together mostAtOnce;
// the others wait, those of one host in order, so that a flood from one host keeps nobody
// else waiting.
type Turns struct {
	Method interface {
		Decode(ctx context.Context, cred string) (*Credential, error)
	}

	once  sync.Once
	all   chan struct{}
	mu    sync.Mutex
	hosts map[string]*hostTurns
}

type hostTurns struct {
	slots chan struct{}
	users int
}

const (
	mostAtOnce = 8
	mostOfHost = 2 // an agent sends one record at a time, and a hook asks one question
)

// Decode decodes a credential that a host sent, in its turn. It returns what Method does, or
// the context's error.
func (t *Turns) Decode(ctx context.Context, host, cred string) (*Credential, error) {
	t.once.Do(func() { t.all, t.hosts = make(chan struct{}, mostAtOnce), map[string]*hostTurns{} })
	h := t.enter(host)
	defer t.leave(host, h)
	for _, slots := range []chan struct{}{h.slots, t.all} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c, err := t.Method.Decode(ctx, cred)
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrReplayed) || errors.Is(err, ErrExpired) {
		// Whoever sends what proves nothing waits, and with it the rest of its host.
		select {
		case <-time.After(penalty):
		case <-ctx.Done():
		}
	}
	return c, err
}

// penalty is how long a credential that proves nothing keeps its host's turn.
const penalty = 50 * time.Millisecond

func (t *Turns) enter(host string) *hostTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.hosts[host]
	if h == nil {
		h = &hostTurns{slots: make(chan struct{}, mostOfHost)}
		t.hosts[host] = h
	}
	h.users++
	return h
}

func (t *Turns) leave(host string, h *hostTurns) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(t.hosts, host)
	}
}
