# The check service: docker build -t ratekit . && docker run -p 8080:8080 ratekit serve --host 0.0.0.0 --demo
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY lua lua
COPY ratekit ratekit
COPY ratekit_django ratekit_django
COPY ratekit_fastapi ratekit_fastapi
COPY ratekit_service ratekit_service
RUN python -m venv /ratekit && /ratekit/bin/pip install --no-cache-dir '.[service,otlp]'

FROM python:3.13-slim
COPY --from=build /ratekit /ratekit
ENV PATH=/ratekit/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 1000
WORKDIR /tmp
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/v1/health', timeout=2)"]
ENTRYPOINT ["ratekit"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080"]
