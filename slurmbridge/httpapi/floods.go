package httpapi

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/slurmbridge/slurmbridge/slurmbridge/turns"
)

// bounds limit the load that clients can cause.
type bounds struct {
	conns  int           // open connections in all
	ofHost int           // open connections from one host
	write  time.Duration // from a request's end to the last byte of the answer
}

// NewServer returns an HTTP server that bounds connections, in all and by host, and the time for each request.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	srv := bounds{conns: 4096, ofHost: 256, write: time.Minute}.server(h)
	srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // failed handshakes are the client's problem
	return srv
}

func (b bounds) server(h http.Handler) *http.Server {
	c := &counted{bounds: b}
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: b.write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ConnState: c.state,
	}
}

// counted holds the open connections in the order of their opening. At a limit it closes the oldest connection of the
// host with the most, so a short request gets through even if its own host keeps connections open.
type counted struct {
	bounds
	mu   sync.Mutex
	open []connection
}

type connection struct {
	net.Conn
	host string
}

func (c *counted) state(conn net.Conn, s http.ConnState) {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return // a Unix socket
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateNew:
		c.open = append(c.open, connection{conn, host})
		c.shed(host)
	case http.StateClosed, http.StateHijacked:
		c.open = slices.DeleteFunc(c.open, func(o connection) bool { return o.Conn == conn })
	}
}

// shed closes the oldest connection of host if it has too many, or of the host with the most if all have too many.
func (c *counted) shed(host string) {
	of := map[string]int{}
	for _, o := range c.open {
		of[o.host]++
	}
	if of[host] <= c.ofHost {
		if len(c.open) <= c.conns {
			return
		}
		host = slices.MaxFunc(slices.Collect(maps.Keys(of)), func(a, b string) int { return of[a] - of[b] })
	}
	oldest := slices.IndexFunc(c.open, func(o connection) bool { return o.host == host })
	_ = c.open[oldest].Close()
	c.open = slices.Delete(c.open, oldest, oldest+1)
}

// readers bounds the answers that are made at a time, and the answers that are sent at a time, since clients may be
// slow. One host gets a part of these turns.
type readers struct {
	making, sending *turns.Turns
	wait            time.Duration // for a turn
}

func newReaders() *readers {
	return &readers{making: turns.New(4, 2), sending: turns.New(32, 8), wait: 5 * time.Second}
}

// inTurn calls do in a turn of the request's host, or answers 503 if none is free in time.
func (r *readers) inTurn(t *turns.Turns, w http.ResponseWriter, req *http.Request, do func()) (done bool) {
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	ctx, cancel := context.WithTimeout(req.Context(), r.wait)
	defer cancel()
	leave, err := t.Enter(ctx, host)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many requests at once: try again in a while", http.StatusServiceUnavailable)
		return false
	}
	defer leave()
	do()
	return true
}

// handle makes an answer in one turn, and sends it in another.
func (r *readers) handle(makes func(w http.ResponseWriter, req *http.Request) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var a answer
		if r.inTurn(r.making, w, req, func() { a = makes(w, req) }) {
			r.inTurn(r.sending, w, req, func() { a.send(w) })
		}
	}
}

// memo caches answers that are expensive to make. Concurrent calls for one key share one answer. No lock is held while
// it is made, so calls for other keys don't wait.
type memo[V any] struct {
	now     func() time.Time
	maxAge  time.Duration // of a cached answer
	timeout time.Duration // for making an answer
	size    int           // the number of cached answers

	making singleflight.Group
	mu     sync.Mutex
	cache  map[string]made[V]
}

// made is an answer with the time of its request.
type made[V any] struct {
	at     time.Time
	answer V
}

// get returns the cached answer for a key, or reads a new one. If ctx ends first, get returns its error, but the answer
// is still read and cached for later calls. An error of read goes to all waiting calls and isn't cached.
func (m *memo[V]) get(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	at := m.now()
	a, ok := m.cache[key]
	m.mu.Unlock()
	if age := at.Sub(a.at); ok && age >= 0 && age < m.maxAge {
		return a.answer, nil
	}
	done := m.making.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timeout)
		defer cancel()
		answer, err := read(ctx)
		if err == nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.cache == nil || len(m.cache) >= m.size {
				m.cache = map[string]made[V]{}
			}
			m.cache[key] = made[V]{at, answer}
		}
		return answer, err
	})
	select {
	case r := <-done:
		return r.Val.(V), r.Err //nolint:errcheck,forcetypeassert // the value is always a V
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

// parameters maps the names of a path's query parameters to the number of times that each may be given.
type parameters map[string]int

// check refuses queries with other parameters. A filter that is silently ignored, because it is misspelt, invalid or
// given too often, would widen the answer to all users.
func (p parameters) check(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badRequest("the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		most, known := p[name]
		given := len(values[name])
		switch {
		case !known && len(p) == 0:
			return badRequest("there is no parameter %.40q: the path takes none", name)
		case !known:
			return badRequest("there is no parameter %.40q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(p)), ", "))
		case given > most:
			return badRequest("%s is given %d times: at most %d", name, given, most)
		}
	}
	return nil
}
