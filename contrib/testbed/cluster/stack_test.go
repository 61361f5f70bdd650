package cluster

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// A wire that is cut neither answers nor refuses, and what hangs on it breaks when it is mended.
func TestAWireThatIsCut(t *testing.T) {
	bridge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	defer bridge.Close()
	w := must.Get(newWire(bridge.URL))(t)
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
	must.Equal(t, must.Get(send())(t), "record")
	w.Set(true)
	hung := make(chan error)
	go func() { _, err := send(); hung <- err }()
	select {
	case err := <-hung:
		t.Fatalf("it didn't hang: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.Set(false)
	must.Equal(t, <-hung != nil, true, "what hung is lost")
	must.Equal(t, must.Get(send())(t), "record")
}
