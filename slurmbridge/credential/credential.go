// Package credential proves which user of the cluster wrote a message. Nodes prove it with
// MUNGE or, where there is no munged, with a key that they share with the controller; users
// with MUNGE or with Slurm's own tokens (auth/slurm). Choose is the one place that chooses.
package credential

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/turns"
)

// Errors of a Method.
var (
	ErrInvalid  = errors.New("the credential is not valid")
	ErrExpired  = errors.New("the credential has expired, or is not valid yet")
	ErrReplayed = errors.New("the credential was used before")
	// ErrDown says nothing about the credential: what makes and checks it fails here.
	ErrDown = errors.New("no credential can be made or checked here")
)

// Method makes credentials and checks them.
type Method interface {
	// Encode makes a credential of this process's user that carries payload, of MaxPayload bytes at most. Returns ErrDown.
	Encode(ctx context.Context, payload string) (string, error)
	// Decode checks a credential. Returns ErrInvalid, ErrExpired (with how far the clocks
	// differ, and with the credential where it is known), ErrReplayed or ErrDown.
	Decode(ctx context.Context, cred string) (*Credential, error)
	// Header is the HTTP header that carries the method's credentials. None is
	// Authorization, which a web_config may ask a password in.
	Header() string
	// Hint says what an admin can do about an error of this method's; "" = nothing is known.
	Hint(err error) string
}

// Methods are a cluster's.
type Methods struct {
	Nodes Method // of agents and hooks: records, and questions for memory limits
	Users Method // of users with questions about their own jobs
}

// Choose returns the methods of a cluster with nodes that have a key file (empty: they have MUNGE,
// and mungeSocket is munged's, empty: its default).
func Choose(keyFile, mungeSocket string) Methods {
	if keyFile != "" {
		return Methods{Nodes: NewKey(keyFile), Users: NewToken()}
	}
	m := &Munge{Socket: mungeSocket}
	return Methods{Nodes: m, Users: m}
}

// ForUser returns the method by which a controller identifies users from a header; nil = this release doesn't know it.
func ForUser(header, mungeSocket string) Method {
	for _, m := range []Method{&Munge{Socket: mungeSocket}, NewToken()} {
		if m.Header() == header {
			return m
		}
	}
	return nil
}

// MaxPayload bounds what a credential may carry, bytes.
const MaxPayload = 4096

// Credential is a decoded credential.
type Credential struct {
	UID uint32
	// User is the name that the credential gives its user, "" = none.
	User string
	// Encoded and Decoded are when it was made, by its host's clock, and when it came here, by this host's.
	Encoded, Decoded time.Time
	Payload          string
}

// Behind is how far the sender's clock is behind this host's, give or take a
// second and the time the credential was on its way; negative: it is ahead.
func (c *Credential) Behind() time.Duration { return c.Decoded.Sub(c.Encoded) }

// skewed says what is wrong with a credential that is too old or from the future.
func (c *Credential) skewed() error {
	d, word := c.Behind(), "behind"
	if d < 0 {
		d, word = -d, "ahead of"
	}
	return fmt.Errorf("%w: made at %s by the sender's clock, and it is %s here: unless it was long on its way, the "+
		"sender's clock is %s %s this host's",
		ErrExpired, c.Encoded.UTC().Format(time.RFC3339), c.Decoded.UTC().Format(time.RFC3339), d.Round(time.Millisecond),
		word)
}

// hint says what an admin can do about an error of a method's.
func hint(err error, down, invalid string) string {
	switch {
	case errors.Is(err, ErrDown):
		return down
	case errors.Is(err, ErrExpired):
		return "set both clocks (chronyc tracking, timedatectl)"
	case errors.Is(err, ErrInvalid):
		return invalid
	}
	return ""
}

// window is how far two clocks may differ, as MUNGE has it by default.
const window = 5 * time.Minute

// mostRemembered bounds the credentials that are remembered in twice the window: 500 nodes send fewer in a day.
const mostRemembered = 1 << 17

// once accepts each credential once, as munged does for its own: credentials outside the window are
// refused, the rest are remembered until they expire.
type once struct {
	mu        sync.Mutex
	turned    time.Time
	new, aged map[[sha256.Size]byte]bool
}

// admit lets an authentic credential through; id is the same for the same credential only. What was made longer ago
// than this process remembers may have been used before. How long it remembers doesn't depend on the clock being set.
func (o *once) admit(id [sha256.Size]byte, c *Credential, remembers time.Duration) error {
	if c.Behind().Abs() > window {
		return c.skewed()
	}
	if c.Behind() > remembers {
		return fmt.Errorf("%w, or may have been: it was made before the daemon started here; the next try makes another",
			ErrReplayed)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	// One from the future can come again until twice the window has passed.
	if c.Decoded.Sub(o.turned).Abs() > 2*window {
		o.aged, o.new, o.turned = o.new, map[[sha256.Size]byte]bool{}, c.Decoded
	}
	if o.new[id] || o.aged[id] {
		return ErrReplayed
	}
	if len(o.new) >= mostRemembered {
		return fmt.Errorf("%w: there are too many to tell which were used", ErrDown)
	}
	o.new[id] = true
	return nil
}

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

// Decode decodes a credential that a host sent, in its turn. It returns what Method does, or the context's error.
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
