package credential

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/turns"
)

// Turns decodes credentials in turn: MUNGE takes a process for each, and any host may send some that prove nothing. At
// most mostOfHost credentials of a host are decoded at once, and mostAtOnce in all.
type Turns struct {
	Method interface {
		Decode(ctx context.Context, cred string) (*Credential, error)
	}

	once  sync.Once
	turns *turns.Turns
}

const (
	mostAtOnce = 8
	mostOfHost = 2 // an agent sends one record at a time, and a hook one request
)

// Decode decodes a credential that a host sent, in its turn. It returns what Method does, or
// the context's error.
func (t *Turns) Decode(ctx context.Context, host, cred string) (*Credential, error) {
	t.once.Do(func() { t.turns = turns.New(mostAtOnce, mostOfHost) })
	leave, err := t.turns.Enter(ctx, host)
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := t.Method.Decode(ctx, cred)
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrReplayed) || errors.Is(err, ErrExpired) {
		// A host that sends a credential that proves nothing waits, and its next requests with it.
		select {
		case <-time.After(penalty):
		case <-ctx.Done():
		}
	}
	return c, err
}

// penalty is how long a credential that proves nothing keeps its host's turn.
const penalty = 50 * time.Millisecond
