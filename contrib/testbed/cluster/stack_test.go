package cluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// Work that can't be done is refused before anything is submitted.
func TestWorkRefused(t *testing.T) {
	for _, w := range []Work{
		{Apps: []string{"gromacs"}, At: []float64{}},
		{Apps: []string{"gromacs"}, At: []float64{1, 2}},
		{Apps: []string{"gromacs"}, At: []float64{1}, Hold: true},
	} {
		if _, err := (&Stack{}).Do(t.Context(), w); err == nil {
			t.Errorf("%+v: no error", w)
		}
	}
}

func TestReleased(t *testing.T) {
	at := released(`time=2026-01-01T00:00:01.000Z level=INFO msg="group released" group=1 kind=start node=n1 gpu=0 jobs=1,2
time=2026-01-01T00:00:10.500Z level=INFO msg="group released" group=2 kind=start node=n1 gpu=0 jobs=3
time=soon level=INFO msg="group released" jobs=9
`)
	if len(at) != 3 || at["3"] != time.Date(2026, 1, 1, 0, 0, 10, 5e8, time.UTC) || at["1"] != at["2"] {
		t.Error(at)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for q, want := range map[float64]float64{0: 1, 0.25: 1, 0.5: 2, 0.75: 3, 0.76: 4, 0.95: 4, 1: 4} {
		if got := Quantile(q, v); got != want {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if Quantile(0.5, nil) != 0 || !slices.Equal(v, []float64{4, 1, 3, 2}) {
		t.Error("of none, or it sorts what it was given")
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int
		want        string
	}{{0, 4, "····"}, {1, 4, "█···"}, {4, 4, "████"}, {5, 4, "████"}, {0, 0, "····"}} {
		if got := Bar(4, c.done, c.total); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.done, c.total, got, c.want)
		}
	}
}

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
