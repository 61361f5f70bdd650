package httpapi

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/turns"
)

// bounds are what readers may take of the daemon.
type bounds struct {
	// conns and ofHost are how many connections are open in all and from one host.
	conns, ofHost int
	// write is how long an answer may take, from the request's end to its last byte.
	write time.Duration
}

var usual = bounds{conns: 4096, ofHost: 256, write: time.Minute}

// NewServer returns an HTTP server with bounds: connections are counted by host, and each has a
// limited time to send its request and to read the answer.
func NewServer(h http.Handler) *http.Server { return usual.server(h) }

func (b bounds) server(h http.Handler) *http.Server {
	c := &counted{bounds: b, hosts: map[string]*list.List{}, at: map[net.Conn]*list.Element{}}
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: b.write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ConnState: c.state,
	}
}

// counted are the open connections. At the limit, the oldest connection of the host with the most
// gives way, so a short request still gets through next to connections from the same machine that
// stay open.
type counted struct {
	bounds
	mu    sync.Mutex
	hosts map[string]*list.List // of net.Conn, the oldest first
	at    map[net.Conn]*list.Element
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
		of := c.hosts[host]
		if of == nil {
			of = list.New()
			c.hosts[host] = of
		}
		c.at[conn] = of.PushBack(conn)
		if of.Len() > c.ofHost {
			c.drop(host)
		} else if len(c.at) > c.conns {
			c.drop(c.fullest())
		}
	case http.StateClosed, http.StateHijacked:
		c.forget(host, conn)
	}
}

// drop closes the oldest connection of a host.
func (c *counted) drop(host string) {
	if conn, ok := c.hosts[host].Front().Value.(net.Conn); ok {
		c.forget(host, conn)
		_ = conn.Close()
	}
}

func (c *counted) forget(host string, conn net.Conn) {
	e := c.at[conn]
	if e == nil {
		return
	}
	delete(c.at, conn)
	if of := c.hosts[host]; of != nil {
		if of.Remove(e); of.Len() == 0 {
			delete(c.hosts, host)
		}
	}
}

// fullest is the host with the most connections.
func (c *counted) fullest() (host string) {
	most := 0
	for h, of := range c.hosts {
		if of.Len() > most {
			host, most = h, of.Len()
		}
	}
	return host
}

// readers bounds what requests take that read the database or return much: few answers are made at a time, half of them
// for one host, and the bytes that slow readers have yet to read are bounded, too.
type readers struct {
	turns *turns.Turns
	wait  time.Duration // for a turn
	// most bytes are on their way in all, and mostOfHost to one host; one answer may be larger.
	most, mostOfHost int

	mu    sync.Mutex
	all   int
	hosts map[string]int
}

func newReaders() *readers {
	return &readers{turns: turns.New(4, 2), wait: 5 * time.Second, most: 64 << 20, mostOfHost: 16 << 20, hosts: map[string]int{}}
}

// answer is one that is made before its reader gets any of it.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = cmp.Or(a.code, code) }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// handle lets h answer in its turn, and says 503 where that doesn't come or too much is on its
// way already.
func (r *readers) handle(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		host, _, _ := net.SplitHostPort(req.RemoteAddr)
		ctx, cancel := context.WithTimeout(req.Context(), r.wait)
		leave, err := r.turns.Enter(ctx, host)
		cancel()
		if err != nil {
			tooMany(w)
			return
		}
		a := &answer{header: w.Header()}
		func() {
			defer leave()
			h(a, req)
		}()
		if !r.send(host, a.body.Len()) {
			tooMany(w)
			return
		}
		defer r.sent(host, a.body.Len())
		w.WriteHeader(cmp.Or(a.code, http.StatusOK))
		// The reader may be gone: there is nowhere to report the error.
		_, _ = w.Write(a.body.Bytes())
	}
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "10")
	http.Error(w, "too many are reading at once: try again in a while", http.StatusServiceUnavailable)
}

// send reports whether so many bytes more may be on their way to a host, and counts them.
func (r *readers) send(host string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all > 0 && r.all+n > r.most || r.hosts[host] > 0 && r.hosts[host]+n > r.mostOfHost {
		return false
	}
	r.all += n
	r.hosts[host] += n
	return true
}

func (r *readers) sent(host string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= n
	if r.hosts[host] -= n; r.hosts[host] == 0 {
		delete(r.hosts, host)
	}
}
