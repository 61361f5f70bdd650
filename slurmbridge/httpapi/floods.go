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

// bounds are what readers may take of the daemon.
type bounds struct {
	// conns and ofHost are how many connections are open in all and from one host.
	conns, ofHost int
	// write is how long an answer may take, from the request's end to its last byte.
	write time.Duration
}

// NewServer returns an HTTP server with bounds: connections are counted by host, and each has a
// limited time to send its request and to read the answer.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	srv := bounds{conns: 4096, ofHost: 256, write: time.Minute}.server(h)
	srv.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug) // a handshake that failed is the other side's matter
	return srv
}

func (b bounds) server(h http.Handler) *http.Server {
	c := &counted{bounds: b}
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: b.write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ConnState: c.state,
	}
}

// counted are the open connections, in the order in which they came. At the limit, the oldest connection of the host
// with the most gives way, so a short request still gets through next to connections from the same machine that stay
// open.
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
		return // a socket of this machine
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

// shed closes the oldest connection of a host that has too many, or if there are too many of the host with the most.
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

// readers bounds what requests take that read the database or return much: few answers are made, and not many sent to
// readers that may be slow, at a time, a part of them for one host.
type readers struct {
	making, sending *turns.Turns
	wait            time.Duration // for a turn
}

func newReaders() *readers {
	return &readers{making: turns.New(4, 2), sending: turns.New(32, 8), wait: 5 * time.Second}
}

// inTurn does something in a turn of the request's host, or says 503 where that doesn't come.
func (r *readers) inTurn(t *turns.Turns, w http.ResponseWriter, req *http.Request, do func()) (done bool) {
	host, _, _ := net.SplitHostPort(req.RemoteAddr)
	ctx, cancel := context.WithTimeout(req.Context(), r.wait)
	defer cancel()
	leave, err := t.Enter(ctx, host)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many are reading at once: try again in a while", http.StatusServiceUnavailable)
		return false
	}
	defer leave()
	do()
	return true
}

// handle has an answer made in its turn, and sent in another.
func (r *readers) handle(makes func(w http.ResponseWriter, req *http.Request) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		var a answer
		if r.inTurn(r.making, w, req, func() { a = makes(w, req) }) {
			r.inTurn(r.sending, w, req, func() { a.send(w) })
		}
	}
}

// memo keeps answers that cost much to make. One that is made is made once for all who wait for it, and nobody who
// waits for another one waits for it: no lock is held meanwhile.
type memo[V any] struct {
	now    func() time.Time
	fresh  time.Duration // how old an answer may be
	within time.Duration // how long one may take to be made
	most   int           // how many are kept

	making singleflight.Group
	mu     sync.Mutex
	kept   map[string]made[V]
}

// made is an answer with the time of its request.
type made[V any] struct {
	at     time.Time
	answer V
}

// get returns the kept answer to a question, or reads a new one. If ctx ends first, get returns its error, and the
// answer is still read and kept for later calls. All calls that wait get a reading's error, and the error isn't kept.
func (m *memo[V]) get(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	m.mu.Lock()
	at := m.now()
	a, ok := m.kept[key]
	m.mu.Unlock()
	if age := at.Sub(a.at); ok && age >= 0 && age < m.fresh {
		return a.answer, nil
	}
	done := m.making.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.within)
		defer cancel()
		answer, err := read(ctx)
		if err == nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.kept == nil || len(m.kept) >= m.most {
				m.kept = map[string]made[V]{}
			}
			m.kept[key] = made[V]{at, answer}
		}
		return answer, err
	})
	select {
	case r := <-done:
		return r.Val.(V), r.Err //nolint:errcheck,forcetypeassert // an answer always
	case <-ctx.Done():
		var none V
		return none, ctx.Err()
	}
}

// parameters maps the names of a path's query parameters to how often each may be given.
type parameters map[string]int

// check refuses a query with other parameters. What falls away in silence widens an answer: with a misspelt filter, one
// that can't be decoded, or more users than a filter takes, every user's lines would come.
func (p parameters) check(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badRequest("the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		most, taken := p[name]
		switch given := len(values[name]); {
		case !taken && len(p) == 0:
			return badRequest("there is no parameter %.40q: the path takes none", name)
		case !taken:
			return badRequest("there is no parameter %.40q; there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(p)), ", "))
		case given > most:
			return badRequest("%s is given %d times: at most %d", name, given, most)
		}
	}
	return nil
}
