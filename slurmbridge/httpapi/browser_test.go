package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// chromium finds the browser, or skips the test where there is none.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("SLURMBRIDGE_REQUIRE_CHROMIUM") != "" {
		t.Fatal("there is no Chromium")
	}
	t.Skip("there is no Chromium")
	return ""
}

// browse runs the browser on an address, once, and returns what it printed.
func browse(t *testing.T, url string, more ...string) string {
	t.Helper()
	path := chromium(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args := append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking",
		"--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=3000",
	}, more...)
	cmd := exec.CommandContext(ctx, path, append(args, url)...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return string(out)
}

// frame is a page of the test's own that shows the status page at some width and writes down what it measures there:
// the page itself needs no script, and forbids them.
const frame = `<!DOCTYPE html><body><iframe frameborder="0" width="WIDTH" height="900" src="/"></iframe><pre id="out"></pre><script>
onload=()=>{const f=document.querySelector("iframe"),d=f.contentDocument,e=d.documentElement;
let wide=[];for(const x of d.querySelectorAll("body *")){const r=x.getBoundingClientRect();
if(r.right>e.clientWidth+0.5&&r.width>0&&!x.closest("svg svg"))wide.push(x.tagName+" "+Math.round(r.right))}
const named=[...d.querySelectorAll('svg[role=img]')].every(s=>s.getAttribute("aria-label"));
const card=f.contentWindow.getComputedStyle(d.querySelector(".card")).borderRadius;
document.querySelector("#out").textContent="width="+e.scrollWidth+" of="+e.clientWidth+" wide="+wide.slice(0,5).join(";")+" named="+named+" radius="+card+" end"}
</script>`

// On a phone and on a desk nothing is wider than the screen, and the style sheet gets past the page's own policy.
func TestPagesInABrowser(t *testing.T) {
	chromium(t)
	asked := 0
	for page, h := range map[string]http.Handler{"": busy(8, 60).Handler(), "usage": used(t, &asked).Handler()} {
		for _, width := range []int{320, 390, 1280} {
			t.Run(fmt.Sprintf("%s of %d", page, width), func(t *testing.T) {
				srv := httptest.NewServer(framed(h, width))
				defer srv.Close()
				out := browse(t, srv.URL+"/frame?of="+page, "--dump-dom", "--window-size=1600,1000")
				want := fmt.Sprintf(`<pre id="out">width=%d of=%d wide= named=true radius=8px end`, width, width)
				must.Contain(t, out, want)
			})
		}
	}
}

// framed adds the measuring page to a handler. The status page lets nobody frame it; here that one header is taken off.
func framed(h http.Handler, width int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/frame" {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, strings.NewReplacer("WIDTH", strconv.Itoa(width), `src="/"`,
				`src="/`+req.URL.Query().Get("of")+`"`).Replace(frame))
			return
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.Header().Set("Content-Security-Policy", strings.ReplaceAll(rec.Header().Get("Content-Security-Policy"),
			"frame-ancestors 'none'", ""))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}
