package cluster

import (
	"io"
	"net"
	"sync"
)

// Wire is what agents reach the bridge through, and can be cut.
type Wire struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newWire(to string) (*Wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{listener: l, to: to, conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(conn)
		}
	}()
	return w, nil
}

// pass carries one connection. While the wire is cut nothing comes through and nothing is
// refused: the other end hears nothing.
func (w *Wire) pass(in net.Conn) {
	if !w.keep(in) {
		return
	}
	defer w.drop(in)
	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	if !w.keep(out) {
		return
	}
	defer w.drop(out)
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
}

// keep notes a connection; while the wire is cut it stays open and unanswered.
func (w *Wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
	return !w.cut
}

func (w *Wire) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	_ = c.Close()
}

// Set cuts the wire or mends it; what hung on it breaks when it is mended.
func (w *Wire) Set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for c := range w.conns {
		_ = c.Close()
		delete(w.conns, c)
	}
}
