package cluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A wire that is cut neither answers nor refuses, and what hangs on it breaks when it is mended.
func TestWire(t *testing.T) {
	bridge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append(body, '!'))
	}))
	defer bridge.Close()
	w, err := newWire(bridge.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func() (string, error) {
		resp, err := client.Post(w.URL+"/v1/records", "text/plain", strings.NewReader("record"))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if got, err := send(); err != nil || got != "record!" {
		t.Fatalf("%q, %v", got, err)
	}
	w.Set(true)
	hung := make(chan error)
	go func() { _, err := send(); hung <- err }()
	select {
	case err := <-hung:
		t.Fatalf("it didn't hang: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.Set(false)
	if err := <-hung; err == nil {
		t.Error("what hung came through")
	}
	if got, err := send(); err != nil || got != "record!" {
		t.Errorf("%q, %v", got, err)
	}
}
