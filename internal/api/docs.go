package api

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed docs
var docsFiles embed.FS

// docsHandler serves the documentation page. It renders /v2/openapi.json with
// a script of ours: no other host is asked, and the policy says so.
func docsHandler() http.Handler {
	files, err := fs.Sub(docsFiles, "docs")
	if err != nil {
		panic(err) // the directory is compiled in
	}
	server := http.StripPrefix("/docs/", http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'")
		w.Header().Set("Cache-Control", "no-cache")
		server.ServeHTTP(w, r)
	})
}
