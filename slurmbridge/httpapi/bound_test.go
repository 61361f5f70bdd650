package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/turns"
)

func listen(t *testing.T, srv *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.Serve(l) }()
	return l.Addr().String()
}

// A reader that never reads is cut off, and what it was to read is given back.
func TestReadersThatNeverRead(t *testing.T) {
	ended := make(chan error, 5)
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = io.WriteString(w, strings.Repeat("x", 1<<20))
		}
		ended <- err
	})
	addr := listen(t, bounds{conns: 10, ofHost: 10, write: 100 * time.Millisecond}.server(big))
	for range 5 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for range 5 {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("an answer that nobody reads goes on")
		}
	}
}

// Somebody who holds many connections loses the oldest, and whoever comes is served.
func TestConnectionsOfOneHost(t *testing.T) {
	for _, b := range []bounds{{conns: 10, ofHost: 3, write: time.Minute}, {conns: 3, ofHost: 10, write: time.Minute}} {
		addr := listen(t, b.server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		served := func(c net.Conn) bool {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			_, err := io.ReadFull(c, make([]byte, 12))
			return err == nil
		}
		var conns []net.Conn
		for i := range 20 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if conns = append(conns, c); !served(c) {
				t.Fatalf("%+v: connection %d isn't served", b, i+1)
			}
		}
		for i, c := range conns {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if i < 17 {
				if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%+v: connection %d of 20 is still there: %v", b, i+1, err)
				}
			}
		}
	}
}

// Few answers are made at a time; whoever waits too long is told so.
func TestReadersInTurn(t *testing.T) {
	r := newReaders()
	r.turns, r.wait = turns.New(1, 1), 20*time.Millisecond
	in, out := make(chan bool), make(chan bool)
	h := r.handle(func(http.ResponseWriter, *http.Request) { in <- true; <-out })
	done := make(chan bool)
	go func() {
		h(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		close(done)
	}()
	<-in
	second := httptest.NewRecorder()
	h(second, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if second.Code != http.StatusServiceUnavailable || second.Header().Get("Retry-After") == "" {
		t.Errorf("the second gets %d", second.Code)
	}
	close(out)
	<-done
}

// However many one host asks for at once, another host's reader has its turn at once.
func TestOneHostLeavesRoomForOthers(t *testing.T) {
	r := newReaders()
	r.wait = time.Minute
	in, out := make(chan bool, 100), make(chan bool)
	h := r.handle(func(_ http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.RemoteAddr, "10.0.0.1:") {
			in <- true
			<-out
		}
	})
	get := func(host string) int {
		req, w := httptest.NewRequest(http.MethodGet, "/", http.NoBody), httptest.NewRecorder()
		req.RemoteAddr = host + ":1"
		h(w, req)
		return w.Code
	}
	var flood sync.WaitGroup
	for range 20 {
		flood.Go(func() { get("10.0.0.1") })
	}
	<-in
	<-in
	for range 10 {
		if code := get("10.0.0.2"); code != http.StatusOK {
			t.Errorf("beside a flood it gets %d", code)
		}
	}
	close(out)
	flood.Wait()
	if all, hosts := r.turns.Held(); all != 0 || hosts != 0 {
		t.Errorf("%d turns of %d hosts are held for ever", all, hosts)
	}
}

// stuck is a reader that takes nothing until it is let go.
type stuck struct {
	http.ResponseWriter
	release chan bool
}

func (s stuck) Write(b []byte) (int, error) { <-s.release; return len(b), nil }

// What slow readers have not read yet is bounded by host, and keeps no other host from
// being answered.
func TestSlowReadersHoldLittle(t *testing.T) {
	r := newReaders()
	r.most, r.mostOfHost = 1000, 250
	h := r.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) })
	get := func(host string, w http.ResponseWriter) {
		req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		req.RemoteAddr = host + ":1"
		h(w, req)
	}
	release := make(chan bool)
	var slow sync.WaitGroup
	for range 2 {
		slow.Go(func() { get("10.0.0.1", stuck{httptest.NewRecorder(), release}) })
	}
	for held := 0; held < 200; {
		r.mu.Lock()
		held = r.hosts["10.0.0.1"]
		r.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	for host, want := range map[string]int{"10.0.0.1": http.StatusServiceUnavailable, "10.0.0.2": http.StatusOK} {
		w := httptest.NewRecorder()
		if get(host, w); w.Code != want {
			t.Errorf("%s gets %d, want %d", host, w.Code, want)
		}
	}
	close(release)
	slow.Wait()
	if r.all != 0 || len(r.hosts) != 0 {
		t.Errorf("%d bytes are counted for ever", r.all)
	}
}
